//! POSIX access control lists, as Linux stores them in the attributes `system.posix_acl_access` and `…_default`: what a
//! new entry inherits from its directory's default list, and what a list permits. The rules are the kernel's own
//! (`posix_acl_create_masq`, `posix_acl_permission`).

/// The only version of the format.
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

const USER_OBJECT: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    /// Read, write and execute in its lowest three bits.
    permissions: u16,
    /// The id of a named user or group; otherwise undefined, and kept as it is.
    id: u32,
}

/// The result of applying a default list to a requested mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    pub mode: u32,
    /// Absent if the mode alone says everything.
    pub access: Option<Acl>,
}

impl Acl {
    /// Returns `None` for a value that the kernel would not have written.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        Some(Self(entries.iter().map(Entry::parse).collect()))
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = self.0.iter().flat_map(|entry| entry.to_bytes());
        VERSION.to_le_bytes().into_iter().chain(entries).collect()
    }

    /// Returns the mode and list of a new entry created with `mode` in a directory with this default list. The
    /// umask does not apply there.
    pub fn inherited(&self, mode: u32) -> Inherited {
        let mut access = self.clone();
        // The mask bounds named entries, so if there is one it stands for the group's bits.
        let group = if self.has(MASK) { MASK } else { GROUP_OBJECT };
        let mut inherited = mode & !0o777;
        for (tag, shift) in [(USER_OBJECT, 6), (group, 3), (OTHER, 0)] {
            for entry in access.0.iter_mut().filter(|entry| entry.tag == tag) {
                entry.permissions &= ((mode >> shift) & 0o7) as u16;
                inherited |= u32::from(entry.permissions) << shift;
            }
        }
        let says_more = [USER, GROUP, MASK].into_iter().any(|tag| self.has(tag));
        Inherited { mode: inherited, access: says_more.then_some(access) }
    }

    /// Returns the permissions, in the lowest three bits, of a user who is neither the owner nor the superuser. `groups`
    /// are the groups he is known to be in, `is_owners` says whether he is in the file's group. He may be in others: a
    /// permission that the entry of some other group denies is not granted to him by the entry for everyone else.
    pub fn permits(&self, uid: u32, groups: &[u32], is_owners: bool) -> u32 {
        let mask = self.0.iter().find(|entry| entry.tag == MASK).map_or(0o7, |entry| entry.permissions);
        let of = |wanted: &dyn Fn(&Entry) -> bool| self.0.iter().filter(|entry| wanted(entry)).collect::<Vec<_>>();
        if let [named, ..] = of(&|entry| entry.tag == USER && entry.id == uid).as_slice() {
            return u32::from(named.permissions & mask);
        }
        let any_group = of(&|entry| matches!(entry.tag, GROUP | GROUP_OBJECT));
        let is_his = |entry: &&&Entry| match entry.tag {
            GROUP => groups.contains(&entry.id),
            _ => is_owners,
        };
        let his: Vec<u16> = any_group.iter().filter(is_his).map(|entry| entry.permissions & mask).collect();
        if !his.is_empty() {
            return u32::from(his.iter().fold(0, |all, permissions| all | permissions));
        }
        let others = of(&|entry| entry.tag == OTHER).iter().fold(0, |all, entry| all | entry.permissions);
        u32::from(any_group.iter().fold(others, |all, entry| all & entry.permissions & mask))
    }

    /// Returns what the owning group may do, in the lowest three bits, if the list has a mask: the mode's group bits
    /// are then those of the mask.
    pub fn masked_group(&self) -> Option<u32> {
        let group = self.0.iter().find(|entry| entry.tag == GROUP_OBJECT).filter(|_| self.has(MASK));
        group.map(|group| u32::from(group.permissions))
    }

    fn has(&self, tag: u16) -> bool {
        self.0.iter().any(|entry| entry.tag == tag)
    }
}

impl Entry {
    fn parse(&[a, b, c, d, id @ ..]: &[u8; ENTRY_BYTES]) -> Self {
        let (tag, permissions) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        Self { tag, permissions, id: u32::from_le_bytes(id) }
    }

    fn to_bytes(self) -> impl Iterator<Item = u8> {
        let head = self.tag.to_le_bytes().into_iter().chain(self.permissions.to_le_bytes());
        head.chain(self.id.to_le_bytes())
    }
}
