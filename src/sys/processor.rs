//! Where this thread runs, and where it should.

use std::io;

use rustix::process::{Pid, getpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The number of the processor this thread runs on.
pub fn here() -> usize {
    sched_getcpu()
}

/// Moves this thread to another processor, if it may run there. Nothing keeps it there: it may run wherever it might
/// before.
pub fn move_to(processor: usize) -> io::Result<()> {
    let may = sched_getaffinity(None)?;
    if processor >= CpuSet::MAX_CPU || !may.is_set(processor) {
        return Ok(());
    }
    let mut there = CpuSet::new();
    there.set(processor);
    sched_setaffinity(None, &there)?;
    Ok(sched_setaffinity(None, &may)?)
}

/// Lets this thread, or a process that it has started, run wherever this process may: both begin where their starter is
/// bound.
pub fn unbind(child: Option<u32>) -> io::Result<()> {
    let child = child.map(|child| Pid::from_raw(child.cast_signed()).ok_or(io::ErrorKind::InvalidInput)).transpose()?;
    let whole = sched_getaffinity(Some(getpid()))?;
    Ok(sched_setaffinity(child, &whole)?)
}

/// Binds this thread to a processor; returns false if it may not run there.
pub fn stay_on(processor: usize) -> io::Result<bool> {
    let may = processor < CpuSet::MAX_CPU && sched_getaffinity(None)?.is_set(processor);
    if may {
        let mut there = CpuSet::new();
        there.set(processor);
        sched_setaffinity(None, &there)?;
    }
    Ok(may)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_moves_to_any_processor_it_may_run_on_and_may_run_on_all_of_them_after_that() {
        let may = sched_getaffinity(None).unwrap();
        for processor in (0..CpuSet::MAX_CPU).filter(|processor| may.is_set(*processor)) {
            let mut alone = CpuSet::new();
            alone.set(processor);
            // Kept there, so that the look at where it is means something.
            sched_setaffinity(None, &alone).unwrap();
            assert_eq!(here(), processor);
            sched_setaffinity(None, &may).unwrap();
            move_to(processor).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap(), may);
        }
        move_to(CpuSet::MAX_CPU).unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), may);
    }
}
