//! Who writes: a look at the program behind the first write through a handle, on a thread of its own.
//!
//! A shell opens the file that the program it becomes (by `execve`) then writes: the same process, another executable. So
//! the opener does not tell who writes, and the process must be looked at again. That look may have to wait for the
//! process, which may be waiting for us ([`crate::sys::process`]), so no request makes it. The first write goes ahead and
//! then waits for the look, since the process may exit or become another program; but for no longer than [`LOOK_MAX`]:
//! then the writer is unknown, and events say so.
//!
//! Mostly the opener is still the same program, and the thread need not be asked: a process that becomes another program
//! gets another name (`comm`), which can be read at any time. One that becomes another program of the same name, such as
//! a script called like what it starts, is reported as what it was before.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::overlay::Caller;
use crate::protocol::Program;
use crate::sys::{process, thread};

/// How long a write waits for a look. A look takes some 20 µs, and longer only if the process cannot be looked at: then
/// it would take until our answer.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// How many looks may wait for their turn. Behind one that takes long, more are of no use.
const LOOKS_MAX: usize = 1024;

/// The thread that looks. It starts with the first look and ends with the view.
#[derive(Default)]
pub(in crate::overlay) struct Witness(OnceLock<Option<SyncSender<Look>>>);

struct Look {
    at: Caller,
    seen: Arc<Seen>,
}

/// Which program wrote through a handle, as far as is known.
#[derive(Default)]
pub(in crate::overlay) struct Seen {
    /// The thread that opened it, and its name at that time.
    opener: Option<(u32, OsString)>,
    what: Mutex<What>,
    looked: Condvar,
}

#[derive(Default)]
enum What {
    /// Nothing was written, or the opener wrote it.
    #[default]
    NobodyElse,
    Looking,
    Wrote(Option<Program>),
}

impl Witness {
    /// Finds out who writes, at the first write since the content was last judged.
    pub fn look(&self, at: Caller, seen: &Arc<Seen>) {
        let is_opener = seen.is_opener(at.pid);
        *seen.what.lock() = if is_opener { What::NobodyElse } else { What::Looking };
        if is_opener {
            return;
        }
        let look = Look { at, seen: seen.clone() };
        let taken = at.pid != 0 && self.thread().is_some_and(|thread| thread.try_send(look).is_ok());
        if !taken {
            // The kernel does not tell who writes, or too many looks are waiting.
            seen.wrote(None);
        }
    }

    fn thread(&self) -> Option<&SyncSender<Look>> {
        let started = self.0.get_or_init(|| {
            let (sender, looks) = sync_channel(LOOKS_MAX);
            let thread = thread::start("witness", || serve(looks));
            // The writers stay unknown, and all else works.
            thread.inspect_err(|err| log::error!("start the thread that looks who writes: {err}")).ok().map(|_| sender)
        });
        started.as_ref()
    }
}

fn serve(looks: Receiver<Look>) {
    for Look { at, seen } in looks {
        seen.wrote(at.program());
    }
}

impl Seen {
    /// For a handle that a thread opens for writing.
    pub fn opened_by(thread: u32) -> Self {
        Self { opener: process::name(thread).map(|name| (thread, name)), ..Self::default() }
    }

    /// True if a thread is the one that opened it, and still the same program.
    fn is_opener(&self, thread: u32) -> bool {
        let opener = self.opener.as_ref().filter(|(opener, _)| *opener == thread && thread != 0);
        opener.is_some_and(|(_, name)| process::name(thread).is_some_and(|now| now == *name))
    }

    fn wrote(&self, program: Option<Program>) {
        *self.what.lock() = What::Wrote(program);
        self.looked.notify_all();
    }

    /// Waits until the look is done, if one is under way.
    pub fn wait(&self) {
        let deadline = Instant::now() + LOOK_MAX;
        let mut what = self.what.lock();
        while matches!(*what, What::Looking) && !self.looked.wait_until(&mut what, deadline).timed_out() {}
    }

    /// Returns the program that wrote; `opener` if no other did: then that wrote, made or emptied the file.
    pub fn writer(&self, opener: Option<&Program>) -> Option<Program> {
        self.wait();
        match &*self.what.lock() {
            What::NobodyElse => opener.cloned(),
            What::Wrote(program) => program.clone(),
            What::Looking => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(pid: u32) -> Caller {
        Caller { pid, uid: 7, gid: 7, umask: 0 }
    }

    #[test]
    fn a_process_that_writes_is_seen_and_the_kernel_is_not() {
        let (witness, seen) = (Witness::default(), Arc::new(Seen::default()));
        witness.look(caller(std::process::id()), &seen);
        let program = seen.writer(None).unwrap();
        assert_eq!((program.pid, program.uid), (std::process::id(), 7));
        assert_eq!(program.exe, std::env::current_exe().unwrap().to_str().map(str::to_owned));
        witness.look(caller(0), &seen);
        assert_eq!(seen.writer(Some(&program)), None, "and what was seen before does not count");
        witness.look(caller(u32::MAX), &seen);
        assert_eq!(seen.writer(Some(&program)), None, "nor one that is gone");
    }

    #[test]
    fn who_opened_it_is_not_looked_at_again_unless_it_has_another_name_by_now() {
        let (witness, own) = (Witness::default(), std::process::id());
        let opener = caller(own).program();
        let name = process::name(own).unwrap();
        let seen = |name: OsString| Arc::new(Seen { opener: Some((own, name)), ..Seen::default() });
        let same = seen(name);
        witness.look(caller(own), &same);
        assert!(witness.0.get().is_none(), "nobody was asked");
        assert_eq!(same.writer(opener.as_ref()), opener);
        let other = seen("sh".into());
        witness.look(caller(own), &other);
        assert_eq!(other.writer(None), opener, "looked at, for it was called otherwise");
        witness.look(caller(u32::MAX), &same);
        assert_eq!(same.writer(opener.as_ref()), None, "another thread");
    }

    #[test]
    fn who_wrote_nothing_has_made_the_file() {
        let opener = caller(std::process::id()).program();
        assert!(opener.is_some());
        assert_eq!(Seen::default().writer(opener.as_ref()), opener);
    }

    #[test]
    fn a_look_that_does_not_end_is_not_waited_for() {
        let seen = Seen { what: Mutex::new(What::Looking), ..Seen::default() };
        let begin = Instant::now();
        assert_eq!(seen.writer(None), None);
        assert!(begin.elapsed() >= LOOK_MAX);
    }
}
