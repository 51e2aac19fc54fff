//! Sizes of a card's memory.

use abi::{
    layout::write_u32,
    params::{
        Field, NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE_PARAMS as ConfComputeSize,
        NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO as Region,
        NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO_525 as Region525,
        NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS as RegionInfo,
        NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS_525 as RegionInfo525, NVOS32_PARAMETERS,
        NVXXXX_CTRL_XXX_INFO as Info,
    },
};
use account::{Accounts, Card};
use base::Bytes;

use crate::grant::Grant;

/// View of one card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShownMemory {
    /// Bytes that it may have.
    pub(crate) limit: Bytes,
    /// Bytes that it has.
    pub(crate) used: Bytes,
}

impl ShownMemory {
    /// Memory of a card; `None`: the container has the whole card or only looks at it, and sees
    /// what there is.
    pub(crate) fn of(grant: &Grant, card: Card, accounts: &Accounts) -> Option<Self> {
        grant.get(card).filter(|own| !own.granted.monitored && !own.granted.whole)?;
        let usage = accounts.card(card).ok()?;
        Some(Self { limit: usage.limit, used: usage.used })
    }

    fn total_kib(self) -> u64 {
        self.limit.0 / Bytes::KIB
    }

    /// Total less what is used, so that every tool computes the same "used" from the two.
    fn free_kib(self) -> u64 {
        self.total_kib().saturating_sub(self.used.0.div_ceil(Bytes::KIB))
    }
}

/// `NV2080_CTRL_FB_INFO_INDEX_*` that tell how large the card is (ctrl2080fb.h), KiB each:
/// RAM_SIZE, TOTAL_RAM_SIZE, HEAP_SIZE, MAPPABLE_HEAP_SIZE, USABLE_RAM_SIZE,
/// PROTECTED_MEM_SIZE_TOTAL_KB.
const TOTALS: [u32; 6] = [0x07, 0x08, 0x09, 0x0a, 0x20, 0x33];
/// Those that tell what is free: LARGEST_FREE_REGION_SIZE, HEAP_FREE, PROTECTED_MEM_SIZE_FREE_KB.
const FREE: [u32; 3] = [0x12, 0x16, 0x34];
/// The entries of `NV2080_CTRL_CMD_FB_GET_INFO`, wherever they are. What the card has does not
/// matter, be it more or less than the grant: the difference would tell what neighbours have.
pub(crate) fn fb_info(list: &mut [u8], count: u32, shown: ShownMemory) {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    for entry in list.chunks_exact_mut(Info::SIZE).take(count) {
        let kib = match Info::index.get(entry) {
            Some(index) if TOTALS.contains(&index) => shown.total_kib(),
            Some(index) if FREE.contains(&index) => shown.free_kib(),
            _ => continue,
        };
        let _ = Info::data.set(entry, u32::try_from(kib).unwrap_or(u32::MAX));
    }
}

/// Returns whether entries of `NV2080_CTRL_CMD_FB_GET_INFO` ask what is free.
pub(crate) fn asks_for_free(list: &[u8], count: u32) -> bool {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut asked = list.chunks_exact(Info::SIZE).take(count).filter_map(|entry| Info::index.get(entry));
    asked.any(|index| FREE.contains(&index))
}

/// Of the aperture through which processors reach the card's memory: all of it (BAR1_SIZE), and
/// what nobody has mapped (BAR1_AVAIL_SIZE, BAR1_MAX_CONTIGUOUS_AVAIL_SIZE).
const BAR1: u32 = 0x05;
const BAR1_FREE: [u32; 2] = [0x1d, 0x1f];

/// Has the driver tell how large BAR1 is where it would tell how much of that nobody has mapped,
/// neighbours included. Which entries were changed, and what was there.
pub(crate) fn ask_for_all_of_bar1(list: &mut [u8], count: u32) -> Vec<(usize, u32)> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut replaced = Vec::new();
    for (at, entry) in list.chunks_exact_mut(Info::SIZE).take(count).enumerate() {
        if let Some(index) = Info::index.get(entry).filter(|index| BAR1_FREE.contains(index)) {
            let _ = Info::index.set(entry, BAR1);
            replaced.push((at, index));
        }
    }
    replaced
}

/// The entries name again what they were asked for.
pub(crate) fn as_asked(list: &mut [u8], replaced: &[(usize, u32)]) {
    for (at, index) in replaced {
        let _ = write_u32(list, at * Info::SIZE, *index);
    }
}

/// Memory of which confidential computing makes all of a card protected or none: the quota is what
/// the card has of either.
pub(crate) fn conf_compute_size(params: &mut [u8], shown: ShownMemory) {
    let is_protected = ConfComputeSize::protectedMemSizeInKb.get(params).is_some_and(|kib| kib > 0);
    let (protected, unprotected) = if is_protected { (shown.total_kib(), 0) } else { (0, shown.total_kib()) };
    let _ = ConfComputeSize::protectedMemSizeInKb.set(params, protected);
    let _ = ConfComputeSize::unprotectedMemSizeInKb.set(params, unprotected);
}

/// The regions of the frame buffer: their sum is cut to the grant, from the last on. They are
/// addresses, so a grant of more than the card has adds nothing to them.
pub(crate) fn fb_regions(params: &mut [u8], shown: ShownMemory) {
    let Some(count) = RegionInfo::numFBRegions.get(params).and_then(|count| usize::try_from(count).ok()) else {
        return;
    };
    let mut left = shown.limit.0;
    let region_size = region_size(params.len());
    let regions = params.get_mut(RegionInfo::fbRegion.at()..).unwrap_or_default();
    for region in regions.chunks_exact_mut(region_size).take(count) {
        let (Some(base), Some(last)) = (Region::base.get(region), Region::limit.get(region)) else { continue };
        let size = last.saturating_sub(base).saturating_add(1);
        let cut = size.min(left);
        left -= cut;
        // A region of nothing cannot be written: its last byte is one before its first.
        let _ = Region::limit.set(region, base.saturating_add(cut).saturating_sub(1));
    }
}

/// Returns the bytes of a region in parameters of this length.
const fn region_size(params: usize) -> usize {
    if params == RegionInfo525::SIZE { Region525::SIZE } else { Region::SIZE }
}

/// The sizes in the struct of `NV_ESC_RM_VID_HEAP_CONTROL` (`NVOS32_PARAMETERS`), bytes each.
pub(crate) fn vid_heap(args: &mut [u8], largest_free: Option<Field<u64>>, shown: ShownMemory) {
    // No total: the driver has told nothing, as when it refused.
    if NVOS32_PARAMETERS::total.get(args).is_none_or(|real| real == 0) {
        return;
    }
    let _ = NVOS32_PARAMETERS::total.set(args, shown.total_kib() * Bytes::KIB);
    for field in [NVOS32_PARAMETERS::free].into_iter().chain(largest_free) {
        let _ = field.set(args, shown.free_kib() * Bytes::KIB);
    }
}

#[cfg(test)]
mod tests {
    use abi::layout::read_u64;
    use proptest::prelude::*;

    use super::*;

    const SHOWN: ShownMemory = ShownMemory { limit: Bytes(4 << 30), used: Bytes((1 << 30) + 1) };

    fn entry(index: u32, data: u32) -> Vec<u8> {
        [index.to_le_bytes(), data.to_le_bytes()].concat()
    }

    fn shown(index: u32, real: u32, shown: ShownMemory) -> u32 {
        let mut list = entry(index, real);
        fb_info(&mut list, 1, shown);
        Info::data.get(&list).unwrap()
    }

    #[test]
    fn sizes_become_the_grants_and_nothing_else_changes() {
        let total = 4 << 20;
        let free = (3 << 20) - 1;
        for (index, expected) in [
            (0x05, 1 << 27), // BAR1
            (0x07, total),
            (0x08, total),
            (0x09, total),
            (0x0a, total),
            (0x03, 1 << 27), // a bus width
            (0x10, 1 << 27), // FB_TAX
            (0x12, free),
            (0x14, 1 << 27), // a mask
            (0x16, free),
            (0x1a, 1 << 27), // a mask
            (0x20, total),
            (0x33, total),
            (0x34, free),
        ] {
            assert_eq!(shown(index, 1 << 27, SHOWN), expected, "{index:#x}");
        }
    }

    #[test]
    fn what_the_card_has_does_not_matter() {
        assert_eq!(shown(0x16, 100, SHOWN), (3 << 20) - 1);
        assert_eq!(shown(0x09, 100, SHOWN), 4 << 20);
        let over = ShownMemory { limit: Bytes(1 << 20), used: Bytes(2 << 20) };
        assert_eq!(shown(0x16, 100, over), 0);
        let huge = ShownMemory { limit: Bytes(u64::MAX), used: Bytes(0) };
        assert_eq!(shown(0x09, 100, huge), u32::MAX);
    }

    #[test]
    fn an_old_call_that_told_nothing_tells_nothing() {
        let mut args = vec![0; 184];
        vid_heap(&mut args, Some(NVOS32_PARAMETERS::infoSize), SHOWN);
        assert_eq!(args, vec![0; 184]);
    }

    #[test]
    fn regions_sum_up_to_the_grant() {
        // Before and since 580.
        for (length, region) in [(RegionInfo525::SIZE, Region525::SIZE), (RegionInfo::SIZE, Region::SIZE)] {
            let mut params = vec![0; length];
            params[0] = 3;
            for (at, (base, last)) in
                [(0_u64, (3_u64 << 30) - 1), (3 << 30, (6 << 30) - 1), (6 << 30, (8 << 30) - 1)].iter().enumerate()
            {
                let at = RegionInfo::fbRegion.at() + at * region;
                params[at..at + 8].copy_from_slice(&base.to_le_bytes());
                params[at + 8..at + 16].copy_from_slice(&last.to_le_bytes());
            }
            fb_regions(&mut params, SHOWN);
            let at = |number: usize| RegionInfo::fbRegion.at() + number * region + Region::limit.at();
            let last: Vec<u64> = (0..3).map(|number| read_u64(&params, at(number)).unwrap()).collect();
            assert_eq!(last, [(3 << 30) - 1, (4 << 30) - 1, (6 << 30) - 1], "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(mut bytes in prop::collection::vec(any::<u8>(), 0..300), limit: u64, used: u64, count: u32) {
            let shown = ShownMemory { limit: Bytes(limit), used: Bytes(used) };
            let length = bytes.len();
            fb_info(&mut bytes, count, shown);
            let copy = bytes.clone();
            let replaced = ask_for_all_of_bar1(&mut bytes, count);
            as_asked(&mut bytes, &replaced);
            prop_assert_eq!(&bytes, &copy);
            fb_regions(&mut bytes, shown);
            vid_heap(&mut bytes, Some(NVOS32_PARAMETERS::infoSize), shown);
            prop_assert_eq!(bytes.len(), length);
        }
    }
}
