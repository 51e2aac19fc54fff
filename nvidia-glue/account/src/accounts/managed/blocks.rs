//! Blocks of 2 MiB, of which UVM takes a card's memory.
//!
//! UVM gives a range smaller pieces of such a block where the range has no whole one, or no longer
//! has, and gives the block back when all of it is free (`free_chunk_with_merges` in
//! kernel-open/nvidia-uvm/uvm_pmm_gpu.c): 4 KiB can keep 2 MiB. So a range that was cut, or that
//! begins within a block, or has less than one, is charged for each block that it touches, also
//! where others touch it: pages that lie beside each other need not be of one block of the card.
//! libcuda makes none of these: its ranges begin with a block and go as wholes, and what is small
//! is put together.

use crate::intervals::Span;

const BLOCK_BITS: u32 = 21;

/// Bytes that a range is charged beyond its length.
pub(super) fn padding(span: Span, is_cut: bool) -> u128 {
    let block = 1_u128 << BLOCK_BITS;
    if !is_cut && u128::from(span.first).is_multiple_of(block) && span.length() >= block {
        return 0;
    }
    let blocks = (span.last >> BLOCK_BITS) - (span.first >> BLOCK_BITS) + 1;
    u128::from(blocks) * block - span.length()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn what_libcuda_maps_is_charged_by_its_bytes() {
        let padding = |start, length, is_cut| padding(Span::new(start, length).unwrap(), is_cut);
        for (start, length, of_whole, of_cut) in [
            (0x7f00_0000_0000, 2 * MIB, 0, 0),
            (0x7f00_0000_0000, 64 * MIB, 0, 0),
            // 3 MB.
            (0x7f00_0040_0000, 733 * 4 * KIB, 0, 4 * MIB - 733 * 4 * KIB),
            (0x7f00_0000_0000, 4 * KIB, 2 * MIB - 4 * KIB, 2 * MIB - 4 * KIB),
            (0x7f00_0000_1000, 2 * MIB, 2 * MIB, 2 * MIB),
            (0x7f00_001f_f000, 8 * KIB, 4 * MIB - 8 * KIB, 4 * MIB - 8 * KIB),
        ] {
            assert_eq!(padding(start, length, false), of_whole.into(), "{start:x} {length}");
            assert_eq!(padding(start, length, true), of_cut.into(), "{start:x} {length}, cut");
        }
        assert_eq!(super::padding(Span { first: 0, last: u64::MAX }, true), 0);
    }
}
