//! How much memory a card gives for a request: never less than what is asked, and often more.

use runtime_config::Bytes;

use crate::rm::decode::MemoryRequest;

const KIB: u64 = Bytes::KIB;
const MIB: u64 = Bytes::MIB;

/// `NVOS32_ATTR_LOCATION`, bits 26:25 (src/common/sdk/nvidia/inc/nvos.h).
const fn location(attr: u32) -> u32 {
    attr >> 25 & 3
}

const VIDEO: u32 = 0;
const ANY: u32 = 3;
/// `NVOS32_ALLOC_FLAGS_VIRTUAL`.
const VIRTUAL: u32 = 0x80000;

/// Whether a request through the old heap call may be served with video memory: the driver makes a range of addresses of it if the
/// flag says so, and looks at the location otherwise.
pub(super) fn takes_video_memory(request: MemoryRequest) -> bool {
    request.flags & VIRTUAL == 0 && matches!(location(request.attr), VIDEO | ANY)
}

/// What is taken of the card for a request, as the driver rounds (src/nvidia/src/kernel/gpu/mem_mgr/mem_mgr.c, arch/maxwell/mem_mgr_gm107.c): to the page size
/// that is asked for, else to 2 MiB from that size on and to 64 KiB below. `None`: no card has that much.
pub(super) fn rounded(request: MemoryRequest) -> Option<Bytes> {
    let page = match (request.attr >> 23 & 3, request.attr2 >> 20 & 3) {
        // NVOS32_ATTR_PAGE_SIZE_HUGE, with NVOS32_ATTR2_PAGE_SIZE_HUGE.
        (3, 2) => 512 * MIB,
        (3, 3) => 256 << 30,
        (3, _) => 2 * MIB,
        // _BIG is 64 or 128 KiB, by the card; _4KB is given from chunks of 64 KiB.
        (2, _) => 128 * KIB,
        (1, _) => 64 * KIB,
        _ if request.size >= 2 * MIB => 2 * MIB,
        _ => 64 * KIB,
    };
    request.size.max(1).checked_next_multiple_of(page).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(size: u64, page: u32, huge: u32) -> MemoryRequest {
        MemoryRequest { flags: 0, attr: page << 23, attr2: huge << 20, size }
    }

    #[test]
    fn sizes_are_what_the_card_gives() {
        for (size, page, huge, expected) in [
            (4_325_376, 0, 0, 6 * MIB),
            (2 * MIB, 0, 0, 2 * MIB),
            (1, 0, 0, 64 * KIB),
            (0, 0, 0, 64 * KIB),
            (4 * KIB, 3, 2, 512 * MIB),
            (4 * KIB, 3, 0, 2 * MIB),
            (4 * KIB, 3, 3, 256 << 30),
            (4 * KIB, 1, 0, 64 * KIB),
            (4 * KIB, 2, 0, 128 * KIB),
        ] {
            assert_eq!(rounded(request(size, page, huge)), Some(Bytes(expected)), "{size} {page} {huge}");
        }
        assert_eq!(rounded(request(u64::MAX, 0, 0)), None);
    }

    #[test]
    fn the_location_decides() {
        let at =
            |flags, location: u32| takes_video_memory(MemoryRequest { flags, attr: location << 25, attr2: 0, size: 1 });
        assert!(at(0, 0) && at(0, 3));
        assert!(!at(0, 1) && !at(0, 2));
        assert!(!at(VIRTUAL, 0));
    }
}
