//! POSIX access control lists, as Linux keeps them in the attributes `system.posix_acl_access` and `…_default`: what a
//! new entry takes over from its directory's default list. The rule is the kernel's own (`posix_acl_create_masq`).

/// The only version of the format there is.
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
    /// Of a named user or group; else undefined, and kept as it is.
    id: u32,
}

/// What comes of a requested mode under a default list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    pub mode: u32,
    /// Absent where the mode alone says all of it.
    pub access: Option<Acl>,
}

impl Acl {
    /// None for what the kernel would not have written.
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

    /// Mode and list of an entry that is made with `mode` where this is the directory's default list. The umask has no
    /// say there.
    pub fn inherited(&self, mode: u32) -> Inherited {
        let mut access = self.clone();
        // Named entries are bounded by the mask, so where there is one it stands for the group's bits.
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
