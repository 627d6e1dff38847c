//! What random operations once found: each is one way in which model and engine disagreed, as short as it gets.

use super::*;

const EACH: WindowLength = WindowLength::Each;
const LONG: WindowLength = WindowLength::Long;
const SESSION: WindowLength = WindowLength::Session;

#[test]
fn who_writes_a_file_that_is_exchanged_goes_on_writing_it_under_its_new_name() {
    check(EACH, &[OpenEmptied(0, "f"), Exchange("a", "f"), Write(0, Line(1)), Close(0)]);
}

#[test]
fn a_mode_that_comes_while_a_writer_still_has_the_landed_file_open_stays() {
    check(EACH, &[Open(0, "f"), Save("f", Base), Chmod("f", 0o600), Write(0, Line(1)), Close(0), Remount]);
}

#[test]
fn new_times_of_a_file_do_not_end_a_window() {
    check(
        LONG,
        &[Save("a", Line(1)), Touch("a"), Save("a", Line(2)), Touch("a"), Save("a", Line(3)), Save("a", Line(4))],
    );
}

#[test]
fn new_times_of_a_file_do_not_make_stale_what_is_written_next() {
    check(EACH, &[Open(0, "a"), Touch("a"), Write(0, Line(1)), Close(0)]);
}

#[test]
fn what_was_renamed_over_something_is_what_its_old_path_is_judged_against() {
    check(LONG, &[Rename("d/s/a", "a"), Save("d/s/a", Line(0))]);
}

#[test]
fn an_old_file_under_a_new_name_does_not_go_unseen_by_being_renamed_over_something() {
    check(EACH, &[Rename("a", "f"), Save("b", Line(1)), Save("f", Many(1)), ConfirmAll, Rename("f", "b"), DiscardAll]);
}

#[test]
fn two_directories_that_both_have_a_file_are_not_exchanged_unseen() {
    check(EACH, &[Save("e/a", Many(1)), Exchange("d", "e"), Save("d/a", Many(2)), Save("e/a", Many(3))]);
}

#[test]
fn what_an_exchanged_directory_had_is_what_its_old_paths_are_judged_against() {
    check(EACH, &[Exchange("d/s", "e"), Save("d/s/a", Many(1)), Exchange("d/s", "e")]);
}

#[test]
fn what_a_renamed_directory_had_is_judged_against_more_than_once() {
    let slices = [Save("d/a", Base), Save("d/a", Line(1)), Unlink("d/a"), Save("d/a", Many(1))];
    check(EACH, &[&[Rename("d", "f"), Mkdir("d")][..], &slices].concat());
}

#[test]
fn a_directory_is_not_what_a_file_made_in_its_place_is_judged_against() {
    check(LONG, &[Rename("b", "f"), Rename("d", "b"), Save("d", Line(0))]);
}

#[test]
fn a_directory_does_not_replace_one_in_which_a_new_file_is_being_written() {
    check(EACH, &[OpenEmptied(0, "e/a"), Rename("d/s", "e"), Write(0, Base), Close(0)]);
}

#[test]
fn a_directory_does_not_take_the_place_of_a_held_deletion() {
    check(EACH, &[Unlink("a"), Rename("d", "a"), Unlink("d/s/a"), Rename("e", "d/s")]);
}

#[test]
fn older_content_over_a_new_file_of_the_same_content_is_not_taken_for_new() {
    let renamed = [Save("c", Base), Rename("a", "c"), OpenEmptied(0, "d/b"), Save("c", Line(0)), Rename("d/b", "c")];
    check(SESSION, &renamed);
}

#[test]
fn a_discarded_deletion_is_there_again_although_its_directory_was_removed() {
    check(EACH, &[Unlink("d/s/a"), Rmdir("d/s"), Discard(1)]);
}

#[test]
fn a_file_is_put_back_although_its_times_are_new() {
    check(LONG, &[Rename("d/a", "a"), Exchange("a", "b"), Save("d/a", Line(0))]);
}

#[test]
fn who_has_a_file_open_that_is_put_back_reads_and_writes_the_copy() {
    let held = [Rename("b", "d/a"), Open(1, "d/a"), Save("f", Line(0)), Rename("f", "b")];
    check(EACH, &[&held[..], &[OpenEmptied(0, "d/a"), Close(0), Write(1, Base), Close(1)]].concat());
}

#[test]
fn a_save_of_the_same_content_does_not_end_a_window() {
    check(LONG, &[Save("f", Many(8)), Save("f", Many(8)), Rename("a", "f")]);
}

#[test]
fn a_changed_file_that_was_renamed_is_not_taken_for_what_comes_back_under_its_old_name() {
    check(EACH, &[OpenEmptied(0, "b"), Rename("b", "a"), Discard(1), Write(0, Base), Close(0)]);
}

#[test]
fn what_took_the_place_of_a_directory_does_not_carry_it_away() {
    check(EACH, &[Unlink("d/s/a"), Rmdir("d/s"), Save("d/s", Base), Rename("d/s", "f"), ConfirmAll]);
}

#[test]
fn symlinks_that_stay_inside_land_and_others_are_held() {
    check(EACH, &[Symlink("f", "../a"), Symlink("c", "a"), Rename("c", "d/b"), Symlink("d/c", "../a"), Confirm(0)]);
}

#[test]
fn what_was_deleted_from_a_directory_is_no_window_of_what_is_made_in_the_other() {
    let exchanged = [Save("e/a", Many(1)), Unlink("e/a"), Exchange("d", "e"), Save("d/a", Many(2))];
    check(LONG, &exchanged);
}

#[test]
fn what_was_confirmed_in_a_renamed_directory_does_not_change_what_its_old_path_is_judged_against() {
    check(EACH, &[Exchange("d", "e"), Save("e/a", Empty), Confirm(0), Save("d/a", Base)]);
}

#[test]
fn a_renamed_file_is_no_new_one_where_the_session_is_the_window() {
    check(WindowLength::Session, &[Rename("a", "f"), Save("f", Line(1)), Save("f", Many(1)), Save("f", Line(2))]);
    check(WindowLength::Session, &[Rename("a", "f"), Save("f", Many(1))]);
}

#[test]
fn what_covers_a_renamed_file_is_judged_when_that_goes_back_although_somebody_has_it_open() {
    check(EACH, &[Rename("d/a", "f"), Save("f", Many(0)), Open(0, "f"), Save("d/a", Base), Close(0)]);
}

#[test]
fn a_touched_file_goes_back_when_its_old_path_is_made_anew() {
    check(EACH, &[Rename("a", "f"), Touch("f"), Save("f", Many(1)), Save("a", Line(1)), Remount, DiscardAll]);
}

#[test]
fn a_file_that_comes_with_a_directory_is_judged_against_what_was_there_before() {
    check(SESSION, &[Save("e/a", Line(0)), Exchange("d/s", "e")]);
}

#[test]
fn what_was_renamed_over_something_is_what_the_session_judges_its_old_path_against() {
    check(SESSION, &[Save("a", Line(0)), Rename("a", "b"), Save("a", Many(0))]);
}

#[test]
fn what_lay_in_a_renamed_directory_is_known_after_a_kill() {
    check(EACH, &[Exchange("d/s", "e"), OpenEmptied(0, "d/s/a"), Remount]);
}

#[test]
fn what_somebody_else_removed_is_gone_also_for_who_has_it_open() {
    check(EACH, &[Open(0, "d/a"), OutsideRemove("d/a"), Write(0, Base)]);
}

#[test]
fn a_held_file_that_was_renamed_may_come_back() {
    check(EACH, &[Rename("d/s/a", "e/a"), Save("e/a", Many(0)), Save("a", Base), Rename("e/a", "d/s/a")]);
}

#[test]
fn who_has_a_replaced_file_open_reads_what_another_writes_to_it() {
    let opens = [OpenEmptied(2, "d/b"), Open(0, "d/b"), Write(2, Base)];
    check(EACH, &[&opens[..], &[Rename("a", "d/b"), Write(0, Line(0))]].concat());
}

#[test]
fn where_a_file_went_before_its_directory_does_not_matter_to_what_another_had() {
    check(EACH, &[Rename("d/s/a", "f"), Exchange("e", "d"), Save("e/s/a", Line(0))]);
}

#[test]
fn where_a_file_went_from_a_renamed_directory_is_known_of_its_first_path() {
    check(EACH, &[Rename("d", "f"), Mkdir("d"), Exchange("d", "f"), Exchange("d", "f"), Save("d/a", Many(0))]);
    check(EACH, &[Exchange("d/s", "e"), Rename("e/a", "c"), Rename("e", "f"), Save("d/s/a", Many(0))]);
    check(EACH, &[Exchange("d/s", "e"), Rename("e/a", "b"), Rename("e", "f"), Save("d/s/a", Many(0))]);
}

#[test]
fn what_was_put_below_meanwhile_stays_where_the_old_file_would_go_back() {
    let away = [Rename("a", "d/a"), OpenEmptied(0, "a"), OutsideWrite("a", Base)];
    check_under(LONG, Rules::Some, &[&away[..], &[Rename("d/a", "c"), Rename("c", "e/a")]].concat());
}

#[test]
fn what_came_with_a_directory_and_goes_with_it_again_leaves_a_path_that_was_free() {
    check(EACH, &[Rename("d/s", "f"), Symlink("e/a", "a"), Exchange("f", "e")]);
}

#[test]
fn what_was_copied_from_a_file_that_is_gone_has_no_mode_of_its_own_but_beside_a_new_one_or_its_base() {
    check(EACH, &[OpenEmptied(0, "b"), Chmod("b", 0o644), OutsideRemove("b")]);
    check(EACH, &[Chmod("b", 0o600), OpenEmptied(0, "b"), OutsideRemove("b")]);
    check(EACH, &[Chmod("b", 0o600), Save("b", Many(0)), OutsideRemove("b"), Save("b", Many(1))]);
    check(EACH, &[Save("b", Many(0)), Chmod("b", 0o600), OutsideRemove("b"), Chmod("b", 0o644)]);
    let made_anew = [Chmod("b", 0o600), Unlink("b"), Save("b", Many(0)), OutsideRemove("b"), Save("b", Many(1))];
    check(EACH, &made_anew);
}

#[test]
fn who_makes_a_symlink_where_somebody_has_removed_a_file_is_not_stale_and_who_renames_to_there_is() {
    check(EACH, &[OutsideRemove("d/a"), Symlink("d/a", "/out")]);
    check(EACH, &[OutsideRemove("d/a"), Symlink("d/a", "a"), Rename("b", "d/a")]);
    check(EACH, &[Save("d/a", Line(0)), OutsideRemove("d/a"), Rename("b", "d/a")]);
    let confirmed = [Symlink("f", "a"), OutsideRemove("d/a"), Rename("f", "d/a"), Confirm(0), Rename("b", "d/a")];
    check(EACH, &[&[Save("d/a", Line(0))][..], &confirmed].concat());
}

#[test]
fn what_somebody_removes_in_a_renamed_directory_has_never_been_there() {
    check(EACH, &[Exchange("d", "e"), OutsideRemove("e/a"), Save("d/a", Base)]);
}

#[test]
fn what_came_with_a_directory_and_is_covered_there_goes_back_before_its_path_is_judged() {
    check(EACH, &[Exchange("e", "d"), OpenEmptied(0, "e/a"), Save("d/a", Base)]);
}

#[test]
fn what_was_renamed_away_with_a_held_change_goes_back_before_what_a_rename_brings_is_judged() {
    check(EACH, &[Rename("a", "f"), Save("f", Empty), Rename("d/a", "a")]);
}

#[test]
fn who_has_a_file_open_that_is_renamed_over_one_of_the_same_content_goes_on_with_that() {
    check(EACH, &[Open(0, "d/a"), Rename("d/a", "a"), Write(0, Line(0))]);
    check(EACH, &[Open(0, "d/a"), Rename("d/a", "d/s/a"), Save("d/s/a", Line(0))]);
    check(EACH, &[Open(0, "b"), Rename("b", "a"), Unlink("a")]);
}

#[test]
fn what_is_made_where_the_deletion_of_what_came_with_a_directory_was_confirmed_is_new() {
    check(SESSION, &[Unlink("d/s/a"), Rename("d", "e"), Confirm(0), Open(0, "e/s/a")]);
    check(SESSION, &[Unlink("d/s/a"), Rename("d/s", "e"), Confirm(0), Save("e/a", Line(0))]);
}

#[test]
fn a_window_that_was_opened_where_a_file_was_meanwhile_stays_there_when_it_goes_back() {
    let opened = [OutsideWrite("d/a", Append(0)), Rename("a", "d/a"), Symlink("c", "a"), Rename("c", "a")];
    check(LONG, &[&opened[..], &[Save("d/a", Empty)]].concat());
    check_under(LONG, Rules::Some, &[&opened[..], &[Rename("d/a", "e/a")]].concat());
}

#[test]
fn what_is_exchanged_with_what_had_its_path_before_is_new_where_that_was() {
    check(EACH, &[RenameFree("d/s/a", "c"), OpenEmptied(0, "d/s/a"), Exchange("d/s/a", "c")]);
}

#[test]
fn what_a_copy_came_from_is_what_the_session_judges_it_against_also_in_a_renamed_directory() {
    let confirmed = [OpenEmptied(0, "d/a"), Remount, Confirm(0), Save("e/a", Line(0))];
    check(SESSION, &[&[Exchange("d", "e")][..], &confirmed].concat());
}

#[test]
fn a_window_stays_where_it_was_opened_also_over_a_kill_after_the_file_has_gone_back() {
    let opened = [OutsideWrite("d/a", Append(0)), Rename("a", "d/a")];
    let copied = [&opened[..], &[Symlink("c", "a"), Rename("c", "a"), Discard(0), Remount]].concat();
    let uncovered = [&opened[..], &[Unlink("d/a"), Save("a", Many(0)), Discard(0), Remount]].concat();
    for window in [LONG, SESSION] {
        check(window, &[&copied[..], &[Unlink("a"), Save("d/a", Empty)]].concat());
        check(window, &[&uncovered[..], &[Unlink("a")]].concat());
    }
}

#[test]
fn a_window_goes_back_with_its_file_also_over_a_kill() {
    let opened = [OutsideWrite("b", Line(7)), Save("a", Line(0)), Rename("a", "f"), Rename("b", "a"), Rename("a", "f")];
    let copied = [Symlink("c", "a"), Rename("c", "a"), Discard(0), Remount, Save("a", Line(2)), Save("a", Line(3))];
    check(LONG, &[&opened[..], &copied].concat());
}

/// It came with a directory to where something new had been.
#[test]
fn what_somebody_else_has_made_is_judged_in_a_session_by_what_it_is() {
    let made = [Save("e/a", Line(0)), Rename("d/a", "a"), OutsideWrite("d/a", Many(0)), Exchange("e", "d")];
    check(SESSION, &[&made[..], &[Truncate("e/a", 0)]].concat());
}
