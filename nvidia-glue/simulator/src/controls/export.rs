//! Objects that travel with a file: exported to a control file, imported from it by whoever was given that.
//!
//! src/nvidia/arch/nvalloc/unix/src/rmobjexportimport.c, ctrl0000unix.h. An export holds its memory as a handle does.

use abi::{Node, Status};

use super::{
    super::{
        bytes::{get, put, put_bytes},
        duplicate::may_be_duplicated,
        objects::{Kind, Object},
        open_files::FileId,
        state::{Export, State},
    },
    Control, PARAMS,
};

/// Length of what an exporter may say about its objects.
const METADATA: usize = 64;
/// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TYPE_RM`.
const RM_OBJECT: u32 = 1;

/// The control file that the number at `offset` of the parameters names.
fn export_file(state: &mut State, control: &Control<'_, '_>, offset: usize) -> Result<FileId, Status> {
    let file = control.call.file_in_buffer(PARAMS, offset).filter(|file| file.node == Node::Control);
    let file = file.cloned().ok_or(Status::INVALID_ARGUMENT)?;
    state.files.identify(&file).map_err(|_| Status::INVALID_ARGUMENT)
}

fn exported(state: &mut State, control: &Control<'_, '_>, handle: u32) -> Result<(Kind, u32), Status> {
    let object = state.client(control.call.file, control.client)?.object(handle)?;
    if may_be_duplicated(&object.kind) {
        Ok((object.kind.clone(), object.class))
    } else {
        Err(Status::INVALID_ARGUMENT)
    }
}

fn new_export(state: &mut State, control: &Control<'_, '_>, device: u32, most: u32) -> Result<Export, Status> {
    let card = state.client(control.call.file, control.client)?.card_of(device);
    if most == 0 || card.is_none() {
        return Err(Status::INVALID_ARGUMENT);
    }
    Ok(Export { card, most, ..Export::default() })
}

/// type, hDevice, hParent, hObject, fd, flags.
pub(super) fn to_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let file = export_file(state, control, 16)?;
    let params = control.params();
    let (kind, device, object, flags) = (get(params, 0), get(params, 4), get(params, 12), get(params, 20));
    if kind != RM_OBJECT {
        return Err(Status::INVALID_ARGUMENT);
    }
    let mut export = new_export(state, control, device, 1)?;
    if state.exports.contains_key(&file) {
        return Err(Status::STATE_IN_USE);
    }
    // With EMPTY_FD only the file is made ready.
    if flags & 1 == 0 {
        let (kind, _) = exported(state, control, object)?;
        export.objects.insert(0, kind);
    }
    state.exports.insert(file, export);
    Ok(())
}

/// fd, type, hDevice, hParent, hObject.
pub(super) fn from_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let file = export_file(state, control, 0)?;
    let params = control.params();
    let (kind, parent, asked) = (get(params, 4), get(params, 12), get(params, 16));
    if kind != RM_OBJECT {
        return Err(Status::INVALID_ARGUMENT);
    }
    let handle = import(state, control, file, 0, parent, asked)?;
    put(control.params(), 16, handle);
    Ok(())
}

fn import(
    state: &mut State,
    control: &Control<'_, '_>,
    file: FileId,
    index: u32,
    parent: u32,
    asked: u32,
) -> Result<u32, Status> {
    let kind =
        state.exports.get(&file).and_then(|export| export.objects.get(&index)).ok_or(Status::INVALID_ARGUMENT)?;
    let kind = kind.clone();
    let client = state.client(control.call.file, control.client)?;
    if parent != control.client {
        client.object(parent)?;
    }
    let handle = client.new_handle(control.client, asked)?;
    let class = match kind {
        Kind::VideoMemory(_) => 0x40,
        Kind::SystemMemory { .. } => 0x3e,
        _ => 0,
    };
    client.objects.insert(handle, Object { parent, class, kind, depends_on: Vec::new() });
    Ok(handle)
}

/// fd, deviceInstance, gpuInstance, maxObjects, metadata.
pub(super) fn info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let file = export_file(state, control, 0)?;
    let export = state.exports.get(&file).ok_or(Status::INVALID_ARGUMENT)?;
    let params = control.params();
    put(params, 4, export.card.and_then(|card| u32::try_from(card).ok()).unwrap_or(u32::MAX));
    put(params, 8, u32::MAX);
    put_bytes(params, 12, &u16::try_from(export.most).unwrap_or(u16::MAX).to_le_bytes());
    put_bytes(params, 14, &export.metadata);
    Ok(())
}

/// hDevice, maxObjects, metadata, fd: an export without objects as yet.
pub(super) fn create(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let file = export_file(state, control, 72)?;
    let params = control.params();
    let (device, most, metadata) = (get(params, 0), get(params, 4) & 0xffff, metadata_at(params, 6));
    let export = new_export(state, control, device, most)?;
    if state.exports.contains_key(&file) {
        return Err(Status::STATE_IN_USE);
    }
    state.exports.insert(file, Export { metadata, ..export });
    Ok(())
}

/// fd, hDevice, maxObjects, metadata, objects\[512\], numObjects, index.
pub(super) fn objects_to_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const MOST: u32 = 512;
    let file = export_file(state, control, 0)?;
    let params = control.params();
    let (device, most, metadata) = (get(params, 4), get(params, 8) & 0xffff, metadata_at(params, 10));
    let (count, index) = (get(params, 2124) & 0xffff, get(params, 2124) >> 16);
    if count == 0 || count > MOST {
        return Err(Status::INVALID_ARGUMENT);
    }
    let handles: Vec<u32> = (0..count as usize).map(|place| get(params, 76 + place * 4)).collect();
    if !state.exports.contains_key(&file) {
        let export = new_export(state, control, device, most)?;
        state.exports.insert(file, Export { metadata, ..export });
    }
    // All of them, or none.
    let kind =
        |handle| if handle == 0 { Ok(None) } else { exported(state, control, handle).map(|(kind, _)| Some(kind)) };
    let kinds = handles.into_iter().map(kind).collect::<Result<Vec<_>, _>>()?;
    let export = state.exports.get_mut(&file).ok_or(Status::INVALID_ARGUMENT)?;
    if index + count > export.most {
        return Err(Status::INVALID_ARGUMENT);
    }
    for (place, kind) in (index..).zip(kinds) {
        // Nothing takes the place of what was there.
        match kind {
            Some(kind) => export.objects.insert(place, kind),
            None => export.objects.remove(&place),
        };
    }
    Ok(())
}

/// fd, hParent, objects\[128\], types\[128\], numObjects, index.
pub(super) fn objects_from_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const MOST: u32 = 128;
    let file = export_file(state, control, 0)?;
    let params = control.params();
    let (parent, count, index) = (get(params, 4), get(params, 648) & 0xffff, get(params, 648) >> 16);
    if count == 0 || count > MOST {
        return Err(Status::INVALID_ARGUMENT);
    }
    let export = state.exports.get(&file).ok_or(Status::INVALID_ARGUMENT)?;
    if index + count > export.most {
        return Err(Status::INVALID_ARGUMENT);
    }
    let has: Vec<bool> = (index..index + count).map(|place| export.objects.contains_key(&place)).collect();
    for (place, has) in (0..).zip(has) {
        let at = 8 + place as usize * 4;
        let asked = get(control.params(), at);
        if !has {
            // What its importer has written there stays.
            put_bytes(control.params(), 520 + place as usize, &[0]);
            continue;
        }
        let handle = import(state, control, file, index + place, parent, asked)?;
        put(control.params(), at, handle);
        // NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_VIDMEM, ..._SYSMEM.
        let kind = &state.client(control.call.file, control.client)?.object(handle)?.kind;
        let kind = if matches!(kind, Kind::VideoMemory(_)) { 1 } else { 2 };
        put_bytes(control.params(), 520 + place as usize, &[kind]);
    }
    Ok(())
}

fn metadata_at(params: &[u8], at: usize) -> Vec<u8> {
    params.get(at..at + METADATA).unwrap_or_default().to_vec()
}
