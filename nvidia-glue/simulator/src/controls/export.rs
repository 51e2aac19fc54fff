//! Objects that travel with a file: exported to a control file, imported from it by whoever was
//! given that.
//!
//! src/nvidia/arch/nvalloc/unix/src/rmobjexportimport.c, ctrl0000unix.h. An export holds its memory
//! as a handle does.

use abi::{
    Handle, Node, Status,
    classes::{NV_MEMORY_FABRIC, NV01_MEMORY_LOCAL_USER, NV01_MEMORY_SYSTEM},
    params::*,
};

use super::{
    super::{
        bytes::{get, list, put, put_text},
        duplicate::may_be_duplicated,
        objects::{Kind, Object},
        open_files::FileId,
        state::{Export, State},
    },
    Control, PARAMS,
};

/// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TYPE_RM`.
const RM_OBJECT: u32 = 1;

/// Control file that a number in the parameters names.
fn export_file(state: &mut State, control: &Control<'_, '_>, number: Field<i32>) -> Result<FileId, Status> {
    let file = control.call.file_in_buffer(PARAMS, number).filter(|file| file.node == Node::Control);
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

/// Exports one object.
pub(super) fn to_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS;
    let file = export_file(state, control, Params::fd)?;
    let params = control.params();
    let (kind, device) = (get(params, Params::r#type), get(params, Params::hDevice).0);
    let (object, flags) = (get(params, Params::hObject).0, get(params, Params::flags));
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

/// Imports one object.
pub(super) fn from_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS;
    let file = export_file(state, control, Params::fd)?;
    let params = control.params();
    let (kind, parent) = (get(params, Params::r#type), get(params, Params::hParent).0);
    let asked = get(params, Params::hObject).0;
    if kind != RM_OBJECT {
        return Err(Status::INVALID_ARGUMENT);
    }
    let handle = import(state, control, file, 0, parent, asked)?;
    put(control.params(), Params::hObject, Handle(handle));
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
        Kind::VideoMemory(_) => NV01_MEMORY_LOCAL_USER,
        Kind::SystemMemory { .. } => NV01_MEMORY_SYSTEM,
        Kind::Fabric(_) => NV_MEMORY_FABRIC,
        _ => 0,
    };
    client.add(handle, Object { parent, class, kind, depends_on: Vec::new() });
    Ok(handle)
}

/// Describes an export.
pub(super) fn info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS;
    let file = export_file(state, control, Params::fd)?;
    let export = state.exports.get(&file).ok_or(Status::INVALID_ARGUMENT)?;
    let params = control.params();
    put(params, Params::deviceInstance, export.card.and_then(|card| u32::try_from(card).ok()).unwrap_or(u32::MAX));
    put(params, Params::gpuInstanceId, u32::MAX);
    put(params, Params::maxObjects, u16::try_from(export.most).unwrap_or(u16::MAX));
    if !export.metadata.is_empty() {
        put_text(params, Params::metadata, &export.metadata);
    }
    Ok(())
}

/// Creates an export that has no objects yet.
pub(super) fn create(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS;
    let file = export_file(state, control, Params::fd)?;
    let params = control.params();
    let (device, most) = (get(params, Params::hDevice).0, u32::from(get(params, Params::maxObjects)));
    let metadata = Params::metadata.bytes(params).unwrap_or_default().to_vec();
    let export = new_export(state, control, device, most)?;
    if state.exports.contains_key(&file) {
        return Err(Status::STATE_IN_USE);
    }
    state.exports.insert(file, Export { metadata, ..export });
    Ok(())
}

/// Exports several objects.
pub(super) fn objects_to_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS;
    const MOST: u32 = 512;
    let file = export_file(state, control, Params::fd)?;
    let params = control.params();
    let (device, most) = (get(params, Params::hDevice).0, u32::from(get(params, Params::maxObjects)));
    let metadata = Params::metadata.bytes(params).unwrap_or_default().to_vec();
    let (count, index) = (u32::from(get(params, Params::numObjects)), u32::from(get(params, Params::index)));
    if count == 0 || count > MOST {
        return Err(Status::INVALID_ARGUMENT);
    }
    let handles: Vec<u32> = list(params, Params::objects, count as usize).into_iter().map(|handle| handle.0).collect();
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

/// Imports several objects.
pub(super) fn objects_from_fd(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS;
    const MOST: u32 = 128;
    let file = export_file(state, control, Params::fd)?;
    let params = control.params();
    let parent = get(params, Params::hParent).0;
    let (count, index) = (u32::from(get(params, Params::numObjects)), u32::from(get(params, Params::index)));
    if count == 0 || count > MOST {
        return Err(Status::INVALID_ARGUMENT);
    }
    let export = state.exports.get(&file).ok_or(Status::INVALID_ARGUMENT)?;
    if index + count > export.most {
        return Err(Status::INVALID_ARGUMENT);
    }
    let has: Vec<bool> = (index..index + count).map(|place| export.objects.contains_key(&place)).collect();
    for (place, has) in (0..).zip(has) {
        let (object, kind) = (Params::objects.element(place as usize), Params::objectTypes.element(place as usize));
        let (Some(object), Some(object_type)) = (object, kind) else { return Err(Status::INVALID_ARGUMENT) };
        let asked = get(control.params(), object).0;
        if !has {
            // The handle that its importer has written stays.
            put(control.params(), object_type, 0);
            continue;
        }
        let handle = import(state, control, file, index + place, parent, asked)?;
        put(control.params(), object, Handle(handle));
        // NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_VIDMEM, ..._FABRIC, ..._SYSMEM.
        let kind = &state.client(control.call.file, control.client)?.object(handle)?.kind;
        let object_type_of = match kind {
            Kind::VideoMemory(_) => 1,
            Kind::Fabric(_) => 3,
            _ => 2,
        };
        put(control.params(), object_type, object_type_of);
    }
    Ok(())
}
