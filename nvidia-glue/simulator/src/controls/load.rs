//! How busy a card is: with the work of all that use it, as a driver says to anybody.

use abi::Status;

use super::{
    super::{
        bytes::{get, put, put_u64},
        state::State,
    },
    Control,
};

/// `NV2080_GPUMON_PID_INVALID`.
const NO_PID: u32 = u32::MAX;

/// `PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2`: type, size of the samples, their count, the oldest, then 72 samples: the instant, and for each
/// of six kinds of engines how busy it was in hundredths of a percent, a scale, a pid, another, a name, a pointer.
pub(super) fn samples(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const HEAD: usize = 16;
    const ENGINE: usize = 128;
    const ENGINES: usize = 6;
    const SAMPLE: usize = 8 + ENGINES * ENGINE;
    const COMPUTE: usize = 1;
    let card = state.cards.get(control.card()?).ok_or(Status::INVALID_DEVICE)?;
    let samples = card.engines.samples().map_err(|error| card.cannot_count(&error))?;
    let params = control.params();
    params.get_mut(HEAD..).unwrap_or_default().fill(0);
    for (place, sample) in samples.iter().enumerate() {
        let at = HEAD + place * SAMPLE;
        put_u64(params, at, sample.at_ns);
        for engine in 0..ENGINES {
            let at = at + 8 + engine * ENGINE;
            let is_busy = engine == COMPUTE && sample.busy > 0;
            put(params, at, if is_busy { sample.busy } else { 0 });
            put(params, at + 8, if is_busy { sample.pid.cast_unsigned() } else { NO_PID });
            put(params, at + 12, NO_PID);
        }
    }
    Ok(())
}

/// `PERF_GET_VID_ENG_PERFMON_SAMPLE`: the engine, from 1; percent; microseconds. Somebody is always recording.
pub(super) fn video_engine(_: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    if !(1..=4).contains(&get(params, 0)) {
        return Err(Status::INVALID_ARGUMENT);
    }
    put(params, 4, 50);
    put(params, 8, 200_000);
    Ok(())
}
