//! The common beginning and end of two contents.
//!
//! Compares block by block, at the speed of memory: most of a saved file is unchanged, and every save is compared.

/// Small enough that searching the first unequal block byte by byte costs nothing.
const BLOCK_BYTES: usize = 64;

/// Returns how many bytes both begin with.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks_exact(BLOCK_BYTES).zip(b.chunks_exact(BLOCK_BYTES));
    let equal = BLOCK_BYTES * blocks.take_while(|(a, b)| a == b).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}

/// Returns how many bytes both end with.
pub fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.rchunks_exact(BLOCK_BYTES).zip(b.rchunks_exact(BLOCK_BYTES));
    let equal = BLOCK_BYTES * blocks.take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - equal], &b[..b.len() - equal]);
    equal + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_ends_are_those_found_byte_by_byte() {
        let lengths = [0, 1, 63, 64, 65, 127, 128, 129, 200];
        for (a_length, b_length) in lengths.iter().flat_map(|a| lengths.iter().map(move |b| (*a, *b))) {
            for differs in 0..a_length.min(b_length) + 1 {
                let (mut a, b) = (vec![b'x'; a_length], vec![b'x'; b_length]);
                a.iter_mut().skip(differs).take(1).for_each(|byte| *byte = b'y');
                let prefix = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
                let suffix = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
                let sizes = (a_length, b_length, differs);
                assert_eq!((common_prefix(&a, &b), common_suffix(&a, &b)), (prefix, suffix), "{sizes:?}");
            }
        }
    }
}
