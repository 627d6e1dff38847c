pub mod daemon;
pub mod mount;
pub mod process;
pub mod signals;
pub mod sqlite;
