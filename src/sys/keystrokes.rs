//! A filter of system calls that keeps a process, and all that it starts, from typing on a terminal.
//!
//! `TIOCSTI` puts a character into a terminal as if a person had typed it, and `TIOCLINUX` has a console paste what is
//! selected. The input outlives the process that made it: the shell from which a program was started takes it for a
//! command, which it then runs outside. The kernel forbids the first only where `dev.tty.legacy_tiocsti` is 0, and never
//! to a process with CAP_SYS_ADMIN.
#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;

use libc::{seccomp_data, sock_filter, sock_fprog};

/// One set of system calls that this machine's programs may make.
struct Calls {
    /// As the kernel names it: `AUDIT_ARCH_…` in linux/audit.h.
    architecture: u32,
    /// The numbers of `ioctl`: mostly one.
    ioctls: [u32; 2],
}

#[cfg(target_arch = "x86_64")]
const CALLS: &[Calls] = &[
    // 64-bit programs, and those whose pointers have 32 bits (x32).
    Calls { architecture: 0xc000_003e, ioctls: [16, 514] },
    Calls { architecture: 0x4000_0003, ioctls: [54, 54] },
];
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
const CALLS: &[Calls] =
    &[Calls { architecture: 0xc000_00b7, ioctls: [29, 29] }, Calls { architecture: 0x4000_0028, ioctls: [54, 54] }];
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
const CALLS: &[Calls] = &[];

/// The bit that tells calls of x32 from others; older kernels take either number with and without it.
const X32: u32 = 0x4000_0000;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Where the filter finds which call is made. Of the request of an `ioctl`, its second argument, the kernel uses only the
/// lower half, which comes first.
const ARCHITECTURE: usize = offset_of!(seccomp_data, arch);
const NUMBER: usize = offset_of!(seccomp_data, nr);
const REQUEST: usize = offset_of!(seccomp_data, args) + size_of::<u64>();

const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();

/// Installs the filter for good in the calling thread and what it starts. The thread must have given up new privileges,
/// or have CAP_SYS_ADMIN. An error on a kind of processor for which the filter does not know every way to call the
/// kernel.
pub fn type_nothing() -> io::Result<()> {
    if CALLS.is_empty() {
        let message = "what types on a terminal is not known of this kind of processor";
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    let mut filter = filter();
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is as long as it says.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls of an unknown architecture end the process.
fn filter() -> Vec<sock_filter> {
    let mut filter: Vec<_> = CALLS.iter().flat_map(of_calls).collect();
    filter.push(step(RETURN, libc::SECCOMP_RET_KILL_PROCESS));
    filter
}

/// Jumps past its end if the call is of another set. A jump counts the steps that it skips.
fn of_calls(Calls { architecture, ioctls: [one, other] }: &Calls) -> [sock_filter; 11] {
    let load = |at: usize| step(LOAD, u32::try_from(at).expect("it lies in a few words"));
    [
        load(ARCHITECTURE),
        jump(*architecture, 0, 9),
        load(NUMBER),
        step(AND, !X32),
        jump(*one, 1, 0),
        jump(*other, 0, 3),
        load(REQUEST),
        jump(request(libc::TIOCSTI), 2, 0),
        jump(request(libc::TIOCLINUX), 1, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
        step(RETURN, REFUSED),
    ]
}

/// C libraries declare requests with 32 or 64 bits.
fn request(number: libc::Ioctl) -> u32 {
    u32::try_from(number).expect("requests have 32 bits")
}

fn step(code: u32, operand: u32) -> sock_filter {
    jumping(code, operand, (0, 0))
}

fn jump(operand: u32, equal: u8, other: u8) -> sock_filter {
    jumping(JUMP_IF_EQUAL, operand, (equal, other))
}

fn jumping(code: u32, operand: u32, (equal, other): (u8, u8)) -> sock_filter {
    let code = u16::try_from(code).expect("codes have 16 bits");
    sock_filter { code, jt: equal, jf: other, k: operand }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel makes of a call, by the filter.
    fn answer(architecture: u32, number: u32, request: u64) -> u32 {
        let (filter, mut at, mut word) = (filter(), 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = filter[at];
            at += 1;
            match u32::from(code) {
                LOAD if k as usize == ARCHITECTURE => word = architecture,
                LOAD if k as usize == NUMBER => word = number,
                LOAD if k as usize == REQUEST => word = (request & u64::from(u32::MAX)) as u32,
                AND => word &= k,
                JUMP_IF_EQUAL => at += usize::from(if word == k { jt } else { jf }),
                RETURN => return k,
                code => panic!("step {at}: {code:#x} {k}"),
            }
        }
    }

    #[test]
    fn typing_is_refused_by_every_way_to_call_and_nothing_else_is() {
        let (typed, pasted, size) = (0x5412, 0x541c, 0x5413);
        for Calls { architecture, ioctls } in CALLS {
            for number in ioctls.iter().flat_map(|number| [*number, number | X32]) {
                for (request, want) in [
                    (typed, REFUSED),
                    (pasted, REFUSED),
                    (typed | 7 << 32, REFUSED),
                    (size, libc::SECCOMP_RET_ALLOW),
                    (typed << 32, libc::SECCOMP_RET_ALLOW),
                ] {
                    let answer = answer(*architecture, number, request);
                    assert_eq!(answer, want, "{architecture:x} {number} {request:x}");
                }
            }
            assert_eq!(answer(*architecture, 1, typed), libc::SECCOMP_RET_ALLOW, "another call of {architecture:x}");
        }
        // A processor of another kind.
        assert_eq!(answer(0x4000_00f3, CALLS[0].ioctls[0], size), libc::SECCOMP_RET_KILL_PROCESS);
    }
}
