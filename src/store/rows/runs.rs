//! What is remembered of runs (SPEC §2): the boot, and the mount namespaces that they were started from. What a run has
//! left behind goes on until the machine is started again, with the same daemon, another or none.

use super::settings;
use crate::store::{Result, Store};
use crate::sys::namespace::{self, Kind};
use crate::sys::process;

const BOOT_OF_RUNS: &str = "boot_of_runs";
/// Followed by the runner's pid.
const RUNNER: &str = "runner ";
/// Followed by the number of a mount namespace. The value is a process in it, and when that began: as long as the process
/// is there, no other namespace has the number.
const OUTSIDE: &str = "outside ";

impl Store {
    /// Called before what `runner` starts is a run. A power cut that loses this note leaves nothing of the run either.
    pub fn note_run(&self, runner: u32) -> Result<()> {
        let (knows_some, now) = (self.has_had_runs()?, process::boot_id().unwrap_or_default());
        let outside = namespace::of(runner, Kind::Mount).ok();
        let outside = outside.and_then(|outside| Some((outside, topmost_in(outside, runner)?)));
        self.database.lock().write(|tx| {
            if !knows_some {
                for forgotten in [RUNNER, OUTSIDE] {
                    tx.execute("DELETE FROM setting WHERE key GLOB ?1", [format!("{forgotten}*")])?;
                }
            }
            settings::set(tx, BOOT_OF_RUNS, &now)?;
            settings::set(tx, &runner_key(runner), &process::began(runner).unwrap_or_default().to_string())?;
            if let Some((outside, (pid, began))) = outside {
                settings::set(tx, &format!("{OUTSIDE}{outside}"), &format!("{pid} {began}"))?;
            }
            Ok(())
        })
    }

    pub fn forget_run(&self, runner: u32) -> Result<()> {
        self.database.lock().write(|tx| {
            tx.execute("DELETE FROM setting WHERE key = ?1", [runner_key(runner)])?;
            Ok(())
        })
    }

    /// True if something of a run may be left, because there has been one since the machine was started.
    pub fn has_had_runs(&self) -> Result<bool> {
        Ok(self.setting(BOOT_OF_RUNS)? == Some(process::boot_id().unwrap_or_default()))
    }

    /// Returns the runners of runs that had not ended when the last daemon did, and when each began ([`process::began`]).
    pub fn noted_runners(&self) -> Result<Vec<(u32, u64)>> {
        let parsed = |(pid, began): (String, String)| Some((pid.parse().ok()?, began.parse().ok()?));
        Ok(self.noted_of_runs(RUNNER)?.into_iter().filter_map(parsed).collect())
    }

    /// Returns the mount namespaces that runs were started from, as far as the processes noted with them are still there.
    pub fn noted_outside(&self) -> Result<Vec<u64>> {
        let there = |(number, process): (String, String)| {
            let (pid, began) = process.split_once(' ')?;
            let (number, pid) = (number.parse().ok()?, pid.parse().ok()?);
            let is_it =
                process::began(pid) == began.parse().ok() && namespace::of(pid, Kind::Mount).ok() == Some(number);
            is_it.then_some(number)
        };
        Ok(self.noted_of_runs(OUTSIDE)?.into_iter().filter_map(there).collect())
    }

    /// Returns what follows `begin` in the names of settings, and their values; nothing of another boot.
    fn noted_of_runs(&self, begin: &str) -> Result<Vec<(String, String)>> {
        if !self.has_had_runs()? {
            return Ok(Vec::new());
        }
        let database = self.reading()?;
        let mut found = database
            .reader()
            .prepare("SELECT substr(key, 1 + length(?1)), value FROM setting WHERE key GLOB ?1 || '*'")?;
        let rows = found.query_map([begin], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

/// Of a process and its ancestors, returns the topmost in a mount namespace, which outlives the others as a rule, and
/// when it began.
fn topmost_in(outside: u64, process: u32) -> Option<(u32, u64)> {
    let is_in = |pid: &u32| namespace::of(*pid, Kind::Mount).ok() == Some(outside);
    let topmost = process::ancestors(process).filter(is_in).last()?;
    Some((topmost, process::began(topmost)?))
}

fn runner_key(runner: u32) -> String {
    format!("{RUNNER}{runner}")
}
