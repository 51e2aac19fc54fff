//! Processes on a card, and what they use of it.

use abi::{
    Status, encode,
    params::{
        NV2080_CTRL_GPU_GET_PID_INFO_PARAMS as PidInfos, NV2080_CTRL_GPU_GET_PIDS_PARAMS as Pids,
        NV2080_CTRL_GPU_PID_INFO as PidInfo,
    },
};
use base::Bytes;

/// One of the container's own processes on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShownProcess {
    /// Its pid, as the caller would call it.
    pub(crate) pid: u32,
    /// Bytes that are charged to it.
    pub(crate) used: Bytes,
}

/// The class of whose objects' owners `NV2080_CTRL_CMD_GPU_GET_PIDS` asks; `None`: it asks for
/// something else (virtual machines).
pub(crate) fn class_asked(params: &[u8]) -> Option<u32> {
    const BY_CLASS: u32 = 0;
    if Pids::idType.get(params)? == BY_CLASS { Pids::id.get(params) } else { None }
}

/// The answer of `NV2080_CTRL_CMD_GPU_GET_PIDS`: these, and nobody else.
pub(crate) fn pids(params: &mut [u8], own: &[u32]) {
    let Some(table) = params.get_mut(Pids::pidTbl.at()..) else { return };
    table.fill(0);
    let mut shown = 0;
    for (slot, pid) in table.chunks_exact_mut(4).zip(own) {
        slot.copy_from_slice(&pid.to_le_bytes());
        shown += 1;
    }
    let _ = Pids::pidTblCount.set(params, shown);
}

/// `NV2080_CTRL_CMD_GPU_GET_PID_INFO`, answered without the driver.
pub(crate) fn pid_info(params: &mut [u8], own: &[ShownProcess]) {
    let Some(count) = PidInfos::pidInfoListCount.get(params).and_then(|count| usize::try_from(count).ok()) else {
        return;
    };
    let infos = params.get_mut(PidInfos::pidInfoList.at()..).unwrap_or_default();
    for info in infos.chunks_exact_mut(PidInfo::SIZE).take(count) {
        let Some(pid) = PidInfo::pid.get(info) else { continue };
        if let Some(rest) = info.get_mut(PidInfo::result.at()..PidInfo::smcSubscription.at()) {
            rest.fill(0);
        }
        if let Some(mig) = info.get_mut(PidInfo::smcSubscription.at()..) {
            mig.fill(0xff);
        }
        match own.iter().find(|process| process.pid == pid) {
            // All of it is private to the process: what is shared within the container is charged
            // to one.
            Some(process) => {
                let _ = PidInfo::memPrivate.set(info, process.used.0);
            }
            None => {
                let _ = PidInfo::result.set(info, Status::OBJECT_NOT_FOUND.0);
            }
        }
    }
}

/// Most entries of `NV2080_CTRL_CMD_GPU_GET_PID_INFO`.
pub(crate) const MOST_PID_INFOS: u32 = 200;

/// Memory that `NV2080_CTRL_CMD_GPU_GET_PID_INFO` reports of the mediator's own pid: that of
/// its clients, duplicates not counted twice.
pub(crate) fn owned_by(params: &[u8]) -> Option<Bytes> {
    let info = params.get(PidInfos::pidInfoList.at()..)?;
    if PidInfo::result.get(info)? != Status::OK.0 {
        return None;
    }
    let private = PidInfo::memPrivate.get(info)?;
    let shared_owned = PidInfo::memSharedOwned.get(info)?;
    private.checked_add(shared_owned).map(Bytes)
}

/// The parameters that ask for the memory of one process, `pid`.
pub(crate) fn ask_owned_by(pid: u32) -> Vec<u8> {
    let mut params = encode!(PidInfos { pidInfoListCount: 1 }).to_vec();
    if let Some(info) = params.get_mut(PidInfos::pidInfoList.at()..) {
        let _ = PidInfo::pid.set(info, pid);
    }
    params
}

#[cfg(test)]
mod tests {
    use abi::layout::{read_u32, read_u64, write_u32};
    use proptest::prelude::*;

    use super::*;

    const PIDS: usize = Pids::pidTbl.at();
    const PIDS_COUNT: usize = Pids::pidTblCount.at();
    const INFO: usize = PidInfo::SIZE;
    const INFOS: usize = PidInfos::pidInfoList.at();
    const INFO_RESULT: usize = PidInfo::result.at();
    const INFO_DATA: usize = PidInfo::memPrivate.at();

    const OWN: [ShownProcess; 2] =
        [ShownProcess { pid: 1, used: Bytes(5 << 20) }, ShownProcess { pid: 30, used: Bytes(0) }];

    #[test]
    fn only_own_processes_are_listed_by_their_own_pids() {
        let ask = |pids: &[u32]| {
            let mut params = vec![0; PIDS + 4 * 950];
            let _ = write_u32(&mut params, PIDS_COUNT, u32::try_from(pids.len()).unwrap());
            for (index, pid) in pids.iter().enumerate() {
                let _ = write_u32(&mut params, PIDS + 4 * index, *pid);
            }
            params
        };
        for own in [&[1, 30][..], &[]] {
            let mut answer = ask(&[4000, 777, 4001]);
            pids(&mut answer, own);
            assert_eq!(answer, ask(own));
        }
    }

    #[test]
    fn what_a_process_uses_is_told_of_own_ones_only() {
        let mut params = ask_owned_by(1);
        let _ = PidInfos::pidInfoListCount.set(&mut params, 2);
        let _ = write_u32(&mut params, INFOS + INFO, 4000);
        pid_info(&mut params, &OWN);
        assert_eq!(read_u64(&params, INFOS + INFO_DATA), Some(5 << 20));
        assert_eq!(read_u32(&params, INFOS + INFO_RESULT), Some(0));
        assert_eq!(read_u32(&params, INFOS + INFO + INFO_RESULT), Some(Status::OBJECT_NOT_FOUND.0));
        assert_eq!(read_u64(&params, INFOS + INFO + INFO_DATA), Some(0));
        assert_eq!(owned_by(&params), Some(Bytes(5 << 20)));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..500), pid: u32) {
            let mut copy = bytes.clone();
            pids(&mut copy, &[pid]);
            class_asked(&copy);
            pid_info(&mut copy, &OWN);
            owned_by(&copy);
            prop_assert_eq!(copy.len(), bytes.len());
        }
    }
}
