//! Telling a power cut from a killed daemon.
//!
//! After a kill the database knows all temporary names: what it says of a name is in the page cache before the name is
//! made. A power cut leaves only those names and commits that had reached the disk. So the boot in which names are made
//! is recorded first, durably, and forgotten at a clean end. Recovery that finds another boot looks for names everywhere,
//! once. So does one that finds a directory gone in which a landing was under way: it may have another name by now.
//!
//! Rows and their upper files, too, survive a power cut only as far as they had reached the disk, even after a clean end,
//! which syncs the rows and not the files. So the boot in which rows are written is noted before the first of them, in
//! the same log: a row on disk has the note of its boot there. It is not forgotten: looking for each row's file costs
//! little.

use crate::store::journal::sweep::Sweep;
use crate::store::rows::settings;
use crate::store::rows::upper::{self, UpperRow, What};
use crate::store::rows::verdicts;
use crate::store::{Context, Fate, Recovered, Result, Store};
use crate::sys::Mode;
use crate::sys::process;
use crate::sys::tree::Tree;

const BOOT: &str = "boot";
const BOOT_OF_ROWS: &str = "boot_of_rows";

/// The mode of a directory whose attributes were lost in a power cut.
const LOST_DIR_MODE: Mode = Mode::from_raw_mode(0o755);

impl Store {
    /// Called before the first temporary name of this process is made.
    pub(in crate::store) fn note_boot(&self) -> Result<()> {
        let mut noted = self.boot_noted.lock();
        if *noted {
            return Ok(());
        }
        let Some(now) = process::boot_id() else { return Ok(()) };
        if self.noted_boot()?.as_ref() != Some(&now) {
            self.unsynced.sync()?;
            self.database.lock().write_durably(|tx| settings::set(tx, BOOT, &now))?;
        }
        *noted = true;
        Ok(())
    }

    /// Called when no landing is under way and none will be, so that there are no temporary names. The project is synced
    /// first: it may be on another disk than the database, and even one disk may keep a commit and lose a removal.
    pub fn forget_boot(&self, lower: &Tree) -> Result<()> {
        let mut noted = self.boot_noted.lock();
        if self.noted_boot()?.is_none() {
            return Ok(());
        }
        if let Err(err) = rustix::fs::syncfs(lower.root()) {
            // A next start that finds another boot looks everywhere.
            log::warn!("sync the project: {}", std::io::Error::from(err));
            return Ok(());
        }
        self.database.lock().write(|tx| Ok(tx.execute("DELETE FROM setting WHERE key = ?1", [BOOT]).map(|_| ())?))?;
        *noted = false;
        Ok(())
    }

    pub(in crate::store) fn recover_from_power_cut(&self, sweep: &Sweep<'_>, recovered: &mut Recovered) -> Result<()> {
        let Some(now) = process::boot_id() else { return Ok(()) };
        if self.lost_power()? {
            self.drop_rows_without_content(recovered)?;
            self.drop_damaged_content()?;
            self.note_boot_of_rows(&now)?;
        }
        if self.noted_boot()?.is_some_and(|noted| noted != now) {
            recovered.swept += sweep.everywhere()?;
            self.forget_boot(sweep.lower)?;
        }
        Ok(())
    }

    /// Has this recovery look for temporary names everywhere, as after a power cut, or the next one if it does not get there.
    pub(in crate::store) fn note_strays(&self) -> Result<()> {
        self.database.lock().write(|tx| settings::set(tx, BOOT, ""))
    }

    /// True if the machine has been booted anew since rows were last written. Only recovery may ask.
    pub(in crate::store) fn lost_power(&self) -> Result<bool> {
        let Some(now) = process::boot_id() else { return Ok(false) };
        Ok(self.setting(BOOT_OF_ROWS)?.as_ref() != Some(&now))
    }

    /// Called before this process writes any row: it recovers first.
    fn note_boot_of_rows(&self, now: &str) -> Result<()> {
        self.database.lock().write(|tx| settings::set(tx, BOOT_OF_ROWS, now))
    }

    /// Drops rows whose file is gone: its removal reached the disk, and the row's did not. Left alone, such a row would
    /// hide what lower has. Only if upper is, and was, on the project's own disk: another that is missing is no loss yet.
    fn drop_rows_without_content(&self, recovered: &mut Recovered) -> Result<()> {
        if !self.dirs.has_own_stage() || !self.knows_places()? {
            return Ok(());
        }
        for row in self.load_upper()?.into_iter().filter(|row| row.what != What::Whiteout) {
            let doing = || format!("stat upper file {}", row.id);
            let place = self.dirs.stage_place(row.id);
            if place.stat().doing(doing)?.is_some() {
                continue;
            }
            if row.what == What::Dir {
                // It had no content to lose, and its entries have nowhere else to be.
                place.make_dir(LOST_DIR_MODE).doing(|| format!("make upper entry {} anew", row.id))?;
                self.unsynced.note_names();
            } else {
                recovered.add(self.lose_upper(&row)?);
            }
        }
        Ok(())
    }

    /// Drops the row, with a verdict for requests that name its id or one that it has superseded.
    fn lose_upper(&self, row: &UpperRow) -> Result<Recovered> {
        let lost = Recovered { gone: row.names.iter().take(1).cloned().collect(), ..Recovered::default() };
        self.database.lock().write(|tx| {
            if let (Some(held), Some(path)) = (&row.held, row.names.first()) {
                verdicts::put(tx, &held.id, path, &Fate::Lost)?;
            }
            lost.record(tx)?;
            upper::delete(tx, row.id)
        })?;
        Ok(lost)
    }

    fn noted_boot(&self) -> Result<Option<String>> {
        self.setting(BOOT)
    }
}
