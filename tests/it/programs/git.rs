//! git, which unlinks a work tree's file and creates it again. What git itself thinks of the outcome is asked as well.

use super::saving::{Saving, saving, savings};

/// Branch `new` has the edit, `main` and the work tree what was.
const BRANCHES: &str = "git init -q -b main . && git add . && git commit -qm old \
    && git checkout -qb new && cp $NEW a.txt && git commit -qam new && git checkout -q main";
/// The same, and `main` has gone on elsewhere.
const DIVERGED: &str = "git init -q -b main . && git add . && git commit -qm old \
    && git checkout -qb new && cp $NEW a.txt && git commit -qam new && git checkout -q main \
    && echo more > more.txt && git add . && git commit -qm more";
/// The edit is what is committed; the work tree has what was.
const BEHIND: &str = "git init -q -b main . && cp a.txt old && cp $NEW a.txt && git add a.txt beside.txt to-a && git commit -qm new \
    && cat old > a.txt && rm old";

const fn git(prepare: &'static str, script: &'static str) -> Saving {
    saving(script)
        .prepared(prepare)
        .asking("git status --porcelain --branch; git log --format=%H; git stash list; git fsck --no-progress")
}

savings! {
    checkout_of_a_branch => git(BRANCHES, "git checkout -q new");
    switch => git(BRANCHES, "git switch -q new");
    checkout_of_a_file => git(BEHIND, "git checkout -q a.txt");
    checkout_of_another_branchs_file => git(BRANCHES, "git checkout -q new -- a.txt");
    restore => git(BEHIND, "git restore a.txt");
    restore_from_a_source => git(BRANCHES, "git restore --source new a.txt");
    reset_hard => git(BEHIND, "git reset -q --hard");
    reset_hard_to_a_branch => git(BRANCHES, "git reset -q --hard new");
    stash => git(BEHIND, "git stash -q");
    stash_pop => git("git init -q -b main . && git add . && git commit -qm old && cp $NEW a.txt && git stash -q", "git stash pop -q");
    stash_apply => git("git init -q -b main . && git add . && git commit -qm old && cp $NEW a.txt && git stash -q", "git stash apply -q");
    merge_fast_forward => git(BRANCHES, "git merge -q new");
    merge => git(DIVERGED, "git merge -q --no-edit new");
    merge_squash => git(DIVERGED, "git merge -q --squash new");
    rebase => git(DIVERGED, "git rebase -q new");
    cherry_pick => git(DIVERGED, "git cherry-pick new >/dev/null");
    revert => git("git init -q -b main . && cp a.txt old && cp $NEW a.txt && git add a.txt && git commit -qm new \
        && cat old > a.txt && git commit -qam old && rm old", "git revert --no-edit HEAD >/dev/null");
    pull => git("git init -q -b main . && git add . && git commit -qm old && git clone -q . $OUT/clone \
        && (cd $OUT/clone && cp $NEW a.txt && git commit -qam new) && git remote add origin $OUT/clone", "git pull -q origin main");
    apply => git(BRANCHES, "git diff main new | git apply");
    apply_three_way => git(BRANCHES, "git diff main new | git apply --3way 2>/dev/null");
    apply_to_index_too => git(BRANCHES, "git diff main new | git apply --index");
    am => git(BRANCHES, "git format-patch --stdout main..new | git am -q");
    worktree_checked_out_of_the_index => git(BEHIND, "git checkout-index -f a.txt");
    read_tree_update => git(BRANCHES, "git read-tree -m -u main new");
}
