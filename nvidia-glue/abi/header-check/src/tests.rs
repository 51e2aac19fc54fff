//! A made-up release that agrees with the tables, and what is found when a part of it is changed.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::{
    compare::{Headers, STATUSES, compare},
    pointer_controls,
    release::{DEPRECATED, DRIVER_HEADERS, EMBEDDED_COPY, REQUIRED, SDK},
};

const CONTROLS: &str = "
#define NV2080_CTRL_CMD_GPU_GET_ENGINES (0x20800123U)
typedef struct NV2080_CTRL_GPU_GET_ENGINES_PARAMS {
    NvU32 engineCount;
    NvP64 engineList;
} NV2080_CTRL_GPU_GET_ENGINES_PARAMS;
#define NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND (0x20801211)
typedef struct {
    NvU32 flags; NvHandle hClient; NvHandle hChannel; NvU64 vMemPtrs[9];
    NvU32 gfxpPreemptMode; NvU32 cilpPreemptMode; NvU64 others[2];
} NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS;
";
const UVM: &str = "
#define UVM_FREE 34
typedef struct { NvU64 base; NvU64 length; NvU32 rmStatus; } UVM_FREE_PARAMS;
";
const NVOS: &str = "
typedef unsigned char NvU8; typedef unsigned int NvU32; typedef unsigned long long NvU64;
typedef NvU32 NvHandle; typedef void *NvP64;
typedef struct { NvHandle hRoot; NvHandle hObjectParent; NvHandle hObjectOld; NvU32 status; } NVOS00_PARAMETERS;
";
const RESOURCES: &str = "
RS_ENTRY(
    /* External Class         */ NV20_SUBDEVICE_0,
    /* Internal Class         */ Subdevice,
    /* Multi-Instance         */ NV_TRUE,
    /* Parents                */ RS_LIST(classId(Device)),
    /* Alloc Param Info       */ RS_OPTIONAL(NV2080_ALLOC_PARAMETERS),
    /* Flags                  */ 0
)
";
const CLASSES: &str = "
#define NV20_SUBDEVICE_0 (0x2080)
typedef struct { NvU32 subDeviceId; } NV2080_ALLOC_PARAMETERS;
";
const COPIES: &str = "
NV_STATUS embeddedParamCopyIn(RMAPI_PARAM_COPY *paramCopies, RmCtrlParams *pRmCtrlParams)
{
    switch (pRmCtrlParams->cmd)
    {
        case NV2080_CTRL_CMD_GPU_GET_ENGINES:
        {
            RMAPI_PARAM_COPY_INIT(paramCopies[0], // a comment, (
                            ((NV2080_CTRL_GPU_GET_ENGINES_PARAMS*)pParams)->engineList,
                            ((NV2080_CTRL_GPU_GET_ENGINES_PARAMS*)pParams)->engineList,
                            ((NV2080_CTRL_GPU_GET_ENGINES_PARAMS*)pParams)->engineCount, sizeof(NvU32));
            break;
        }
    }
}
";
const EXPORTS: &str = "
    {               /*  [0] */
        /*flags=*/      0x8u,
        /*accessRight=*/0x0u,
        /*methodId=*/   0x20800123u,
        /*paramSize=*/  sizeof(NV2080_CTRL_GPU_GET_ENGINES_PARAMS),
        /*pClassInfo=*/ &(__nvoc_class_def_Subdevice.classInfo),
    },
";
const GENERATED_FILE: &str = "src/nvidia/generated/g_subdevice_nvoc.c";
const ESCAPES: &str = "#define NV_ESC_RM_FREE 0x29\n";
const CTRL: &str = "src/common/sdk/nvidia/inc/ctrl/ctrl2080.h";
const CLASS: &str = "src/common/sdk/nvidia/inc/class/cl2080.h";
const NVOS_H: &str = "src/common/sdk/nvidia/inc/nvos.h";
const ESCAPE_H: &str = "src/nvidia/arch/nvalloc/unix/include/nv_escape.h";
const UVM_H: &str = "kernel-open/nvidia-uvm/uvm_ioctl.h";

/// Creates a release that agrees with the tables.
fn release() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for empty in DRIVER_HEADERS.iter().chain(&REQUIRED) {
        write(path, empty, "");
    }
    let statuses: Vec<String> = STATUSES.iter().map(|(name, status)| format!("{name} = {}", status.0)).collect();
    write(path, &format!("{SDK}/nvstatus.h"), &format!("enum {{ {} }};", statuses.join(", ")));
    write(path, &format!("{SDK}/nvtypes.h"), "");
    write(path, &format!("{SDK}/alloc/alloc_channel.h"), "");
    for (file, text) in [
        ("version.mk", "NVIDIA_VERSION = 580.142\n"),
        (CTRL, CONTROLS),
        (CLASS, CLASSES),
        (NVOS_H, NVOS),
        (ESCAPE_H, ESCAPES),
        (UVM_H, UVM),
        (REQUIRED[0], RESOURCES),
        (EMBEDDED_COPY, COPIES),
        (REQUIRED[2], "#define RMCTRL_FLAGS_NON_PRIVILEGED 0x000000008\n"),
        (REQUIRED[3], "UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_FREE, uvm_api_free);\n"),
        (GENERATED_FILE, EXPORTS),
    ] {
        write(path, file, text);
    }
    folder
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Differences that the release gets once `old` has become `new` in one of its files: `row: fact`.
fn changed(file: &str, old: &str, new: &str) -> Vec<String> {
    let folder = release();
    let text = fs::read_to_string(folder.path().join(file)).unwrap();
    assert!(text.contains(old), "{file} has no {old}");
    write(folder.path(), file, &text.replacen(old, new, 1));
    let before = differences(release().path());
    differences(folder.path()).into_iter().filter(|found| !before.contains(found)).collect()
}

fn differences(folder: &Path) -> Vec<String> {
    let report = compare(&Headers::read(folder).unwrap());
    report.differences().iter().map(|found| format!("{}: {}", found.row, found.fact)).collect()
}

#[test]
fn a_release_that_agrees_has_no_differences() {
    let folder = release();
    let report = compare(&Headers::read(folder.path()).unwrap());
    // Most calls of the tables are missing.
    let others = report.differences().iter().filter(|found| found.fact != "in this release");
    assert_eq!(others.count(), 0, "{report}");
    // Two controls, a class, an escape, a UVM command, the statuses, and structs of some of these.
    let text = report.to_string();
    let rows = text.strip_prefix("580.142: ").and_then(|text| text.split_once(" rows compared")).unwrap();
    assert!(rows.0.parse::<usize>().unwrap() >= 23, "{text}");
}

#[test]
fn wrong_numbers_are_found() {
    let engines = changed(CTRL, "0x20801211", "0x20801299");
    assert_eq!(engines, ["0x20801211 NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND: number"]);
    assert_eq!(changed(ESCAPE_H, "0x29", "0x2c"), ["NV_ESC_RM_FREE: number"]);
    assert_eq!(changed(UVM_H, "UVM_FREE 34", "UVM_FREE 35"), ["UVM_FREE: number"]);
    assert_eq!(changed(CLASS, "(0x2080)", "(0x2081)")[0], "NV20_SUBDEVICE_0: number");
    let status = changed("src/common/sdk/nvidia/inc/nvstatus.h", "NV_ERR_NO_MEMORY = 81", "NV_ERR_NO_MEMORY = 82");
    assert_eq!(status, ["NV_ERR_NO_MEMORY: number"]);
}

#[test]
fn wrong_sizes_are_found() {
    assert_eq!(changed(UVM_H, "NvU32 rmStatus;", "NvU32 rmStatus; NvU64 more;")[0], "UVM_FREE: size");
    let parameters = changed(CLASS, "NvU32 subDeviceId;", "NvU32 subDeviceId; NvU32 more;");
    assert_eq!(parameters[0], "NV20_SUBDEVICE_0: most bytes of parameters");
    let shorter = changed(CTRL, "NvU32 engineCount;\n    NvP64 engineList;", "NvP64 engineList;");
    assert!(shorter.iter().any(|found| found.contains("bytes of NV2080_CTRL_GPU_GET_ENGINES_PARAMS")), "{shorter:?}");
}

#[test]
fn wrong_offsets_are_found() {
    let order = changed(NVOS_H, "NvHandle hObjectOld; NvU32 status;", "NvU32 status; NvHandle hObjectOld;");
    assert!(order.contains(&String::from("NV_ESC_RM_FREE: offset of status")), "{order:?}");
    assert!(order.iter().any(|found| found.starts_with("NVOS00_PARAMETERS: hObjectOld")), "{order:?}");
    let client = changed(CTRL, "NvU32 flags; NvHandle hClient;", "NvHandle hClient; NvU32 flags;");
    assert!(client.iter().any(|found| found.ends_with("client at 4")), "{client:?}");
}

#[test]
fn new_pointers_are_found() {
    let pointer = changed(CTRL, "NvP64 engineList;", "NvP64 engineList; struct { NvP64 next; } more[2];");
    assert!(pointer.iter().any(|found| found.ends_with("GET_ENGINES_PARAMS.more[].next")), "{pointer:?}");
    assert_eq!(changed(UVM_H, "NvU64 base;", "NvP64 base;")[0], "UVM_FREE: pointers");
    let class = changed(CLASS, "NvU32 subDeviceId;", "NvU8 *subDeviceId;");
    assert!(class.iter().any(|found| found.contains("pointer NV2080_ALLOC_PARAMETERS.subDeviceId")), "{class:?}");
    let client = changed(CTRL, "NvHandle hChannel;", "NvHandle hOtherClient;");
    assert!(client.iter().any(|found| found.ends_with("PARAMS.hOtherClient")), "{client:?}");
}

#[test]
fn other_elements_are_found() {
    let element = changed(EMBEDDED_COPY, "sizeof(NvU32)", "sizeof(NvU64)");
    assert_eq!(element, ["0x20800123 NV2080_CTRL_CMD_GPU_GET_ENGINES: element of engineList"]);
}

#[test]
fn structs_that_are_missing_are_found() {
    assert_eq!(changed(UVM_H, "UVM_FREE_PARAMS", "UVM_OTHER_PARAMS"), ["UVM_FREE: struct"]);
    let escape = changed(NVOS_H, "NVOS00_PARAMETERS", "NVOS99_PARAMETERS");
    assert_eq!(escape, ["NV_ESC_RM_FREE: struct", "NV_ESC_RM_FREE: struct"]);
    let control = changed(CTRL, "} NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS", "} NV2080_CTRL_OTHER_PARAMS");
    assert_eq!(control, ["0x20801211 NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND: parameters"]);
}

#[test]
fn what_has_no_row_is_found() {
    let control = changed(GENERATED_FILE, "0x20800123u", "0x20807f7fu");
    assert!(control.contains(&String::from("0x20807f7f NV2080_CTRL_GPU_GET_ENGINES_PARAMS: has a row")), "{control:?}");
    let command = changed(REQUIRED[3], "UVM_FREE", "UVM_NEW");
    assert_eq!(command, ["UVM_NEW: has a row"]);
    let class = changed(REQUIRED[0], "NV20_SUBDEVICE_0", "0x1234");
    assert!(class.iter().any(|found| found.ends_with("has a row")), "{class:?}");
}

#[test]
fn parameters_with_a_pointer_and_without_a_control_are_found() {
    let more = "#define NV2080_CTRL_NEW_PARAM_MESSAGE_ID (0x1U)\ntypedef struct { NvP64 p; } NV2080_CTRL_NEW_PARAM;\n";
    let found = changed(CTRL, "#define NV2080_CTRL_CMD_GR", &format!("{more}#define NV2080_CTRL_CMD_GR"));
    assert_eq!(found, ["NV2080_CTRL_NEW_PARAM: control of these parameters, which hold a pointer"]);
}

/// 0x20800123 may be asked; `..._SET_COMPUTE_MODE_RULES` may not.
#[test]
fn a_number_that_was_given_to_a_refused_control_is_found() {
    let name = "NV2080_CTRL_CMD_GPU_GET_ENGINES";
    let other = changed(CTRL, name, "NV2080_CTRL_CMD_GPU_SET_COMPUTE_MODE_RULES");
    assert_eq!(other, [format!("0x20800123 {name}: control of this number")]);
}

#[test]
fn a_folder_that_is_no_release_is_refused() {
    let folder = release();
    fs::remove_file(folder.path().join(EMBEDDED_COPY)).unwrap();
    assert!(Headers::read(folder.path()).unwrap_err().to_string().contains("embedded_param_copy.c is missing"));
    write(folder.path(), "version.mk", "VERSION = 1");
    assert!(Headers::read(folder.path()).unwrap_err().to_string().contains("NVIDIA_VERSION"));
}

#[test]
fn pointer_controls_are_those_of_the_code_and_of_the_structs() {
    let folder = release();
    let of = |folder: &Path| pointer_controls::list(&pointer_controls::of(&Headers::read(folder).unwrap()));
    let engines = "0x20800123 NV2080_CTRL_CMD_GPU_GET_ENGINES\n";
    assert_eq!(of(folder.path()), engines);
    // Named by the code only.
    write(folder.path(), GENERATED_FILE, "");
    let text = CONTROLS.replace("NvP64 engineList", "NvU64 engineList");
    write(folder.path(), CTRL, &text);
    assert_eq!(of(folder.path()), engines);
    // By its struct only, and by a converter.
    write(folder.path(), EMBEDDED_COPY, "");
    write(folder.path(), CTRL, &text.replace("NvHandle hChannel", "NvU8 *pointer"));
    let bind = "0x20801211 NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND\n";
    assert_eq!(of(folder.path()), bind);
    let converter = "    { NV2080_CTRL_CMD_GPU_GET_ENGINES, V2_CONVERTER(_NV2080_CTRL_CMD_GPU_GET_ENGINES) },\n";
    write(folder.path(), DEPRECATED, converter);
    assert_eq!(of(folder.path()), format!("{engines}{bind}"));
}
