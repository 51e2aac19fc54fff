//! A card's load: the work of all that use it, as a driver reports it to anybody.

use abi::{Status, params::*};

use super::{
    super::{
        bytes::{elements, fill, get, put},
        state::State,
    },
    Control,
};

/// `NV2080_GPUMON_PID_INVALID`.
const NO_PID: u32 = u32::MAX;

/// Reports 72 samples: the instant, and for each of six kinds of engines its load in hundredths of
/// a percent.
pub(super) fn samples(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS;
    type UtilSample = NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE;
    type EngineSample = NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE;
    const IDLE: [Field<EngineSample>; 5] =
        [UtilSample::fb, UtilSample::nvenc, UtilSample::nvdec, UtilSample::nvjpg, UtilSample::nvofa];
    let card = state.cards.get(control.card()?).ok_or(Status::INVALID_DEVICE)?;
    let samples = card.engines.samples().map_err(|error| card.cannot_count(&error))?;
    let params = control.params();
    fill(params, Params::samples, 0);
    for (place, sample) in elements(params, Params::samples).zip(samples) {
        put(place, UtilSample::timeStamp, sample.at_ns);
        let busy = (sample.busy > 0).then_some((sample.busy, sample.pid.cast_unsigned()));
        for (engine, busy) in IDLE.into_iter().map(|engine| (engine, None)).chain([(UtilSample::gr, busy)]) {
            let engine = engine.bytes_mut(place).unwrap_or_default();
            let (util, pid) = busy.unwrap_or((0, NO_PID));
            put(engine, EngineSample::util, util);
            put(engine, EngineSample::procId, pid);
            put(engine, EngineSample::subProcessID, NO_PID);
        }
    }
    Ok(())
}

/// Reports the load of a video engine (numbered from 1): always 50 %.
pub(super) fn video_engine(_: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_PERF_GET_VID_ENG_PERFMON_SAMPLE_PARAMS;
    let params = control.params();
    if !(1..=4).contains(&get(params, Params::engineType)) {
        return Err(Status::INVALID_ARGUMENT);
    }
    put(params, Params::clkPercentBusy, 50);
    put(params, Params::samplingPeriodUs, 200_000);
    Ok(())
}
