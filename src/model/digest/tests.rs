use std::collections::HashSet;

use super::*;

fn sha256(content: &[u8]) -> Digest {
    Digest(sha2::Sha256::digest(content).into())
}

/// As [`ContentHasher`] is fed by who does not read holes: `(zeros, bytes)` in turn.
fn hashed(parts: &[(u64, &[u8])]) -> Digest {
    let mut hasher = ContentHasher::default();
    for (zeros, bytes) in parts {
        hasher.zeros(*zeros);
        hasher.update(bytes);
    }
    hasher.finish()
}

#[test]
fn the_identity_of_content_is_its_sha256() {
    let content = [vec![0; 3 * ZERO_BLOCK_BYTES], vec![7; ZERO_BLOCK_BYTES], vec![0; 5], b"end".to_vec()].concat();
    let want = sha256(&content);
    assert_eq!(Digest::of(&content), want);
    assert_eq!(hashed(&[(0, &content)]), want);
    assert_eq!(hashed(&[(3 * ZERO_BLOCK_BYTES as u64, &content[3 * ZERO_BLOCK_BYTES..])]), want);
    // All zeros that are hashed still, and one byte that is part of no block.
    let zeros = vec![0; (ZEROS_HASHED_MAX + 1) as usize];
    assert_eq!(hashed(&[(ZEROS_HASHED_MAX + 1, b"")]), sha256(&zeros));
}

#[test]
fn zeros_beyond_a_limit_are_told_by_where_they_are() {
    const BLOCK: u64 = ZERO_BLOCK_BYTES as u64;
    let full = [1; ZERO_BLOCK_BYTES];
    let limit = ZEROS_HASHED_MAX;
    let contents: [&[(u64, &[u8])]; 8] = [
        &[(limit, b"")],
        &[(limit + BLOCK, b"")],
        &[(limit + BLOCK + 1, b"")],
        &[(limit + 2 * BLOCK, b"")],
        &[(limit + BLOCK, &full)],
        &[(limit, &full), (BLOCK, b"")],
        &[(limit + BLOCK, &full), (BLOCK, b"")],
        &[(limit + 2 * BLOCK, &full)],
    ];
    let digests: HashSet<Digest> = contents.iter().map(|parts| hashed(parts)).collect();
    assert_eq!(digests.len(), contents.len());
    assert!(contents.iter().all(|parts| hashed(parts) == Digest::of(&spelled_out(parts))));
    // In no time, however many they are.
    assert_ne!(hashed(&[(1 << 62, b"x")]), hashed(&[((1 << 62) + BLOCK, b"x")]));
}

/// The same bytes, none of them a hole.
fn spelled_out(parts: &[(u64, &[u8])]) -> Vec<u8> {
    let parts: Vec<_> =
        parts.iter().map(|(zeros, bytes)| [vec![0; *zeros as usize], bytes.to_vec()].concat()).collect();
    parts.concat()
}
