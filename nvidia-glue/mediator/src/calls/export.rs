//! Objects that are given out to open files, and taken in from them (ctrl0000unix.h).
//!
//! What the driver exports to a file lives as long as the file, which may travel anywhere
//! (`SCM_RIGHTS`) and so hide from its container's account. The file that the container names is
//! therefore only a token: the export is really on a control file of the mediator's own, which an
//! import through the token is made from. It ends with the mediator at the latest, and a token that
//! comes into another container names nothing there.

use std::{fs::File, sync::Arc};

use abi::{
    Handle, Node, Status,
    controls::{
        NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
        NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
    },
    decode::Control,
    layout::read_u32,
    params::{
        Field, NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS as ExportObject,
        NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS as ExportObjects,
        NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS as ExportObjectInfo,
        NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS as ImportObject,
        NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS as ImportObjects,
    },
};
use account::{Hold, Kind, ObjectName};
use driver::{FileField, Holder};

use crate::{
    Answer, Session,
    calls::object_alloc::{AllocSource, ObjectAlloc},
    in_flight::{CallEnd, InFlightCall, errno},
    locks::lock,
    objects::{named_locks::LockName, open_files::Token},
};

/// Fields of a control's parameters.
struct ExportLayout {
    fd: Field<i32>,
    /// Parent of imported objects.
    parent: Option<Field<Handle>>,
    /// Offset of the first object's handle.
    objects_at: usize,
    most: usize,
    /// Number of objects, and the index of the first; `None`: a single object.
    count: Option<(Field<u16>, Field<u16>)>,
}

const ONE_EXPORT: ExportLayout =
    ExportLayout { fd: ExportObject::fd, parent: None, objects_at: ExportObject::hObject.at(), most: 1, count: None };
const ONE_IMPORT: ExportLayout = ExportLayout {
    fd: ImportObject::fd,
    parent: Some(ImportObject::hParent),
    objects_at: ImportObject::hObject.at(),
    most: 1,
    count: None,
};
const MANY_EXPORTS: ExportLayout = ExportLayout {
    fd: ExportObjects::fd,
    parent: None,
    objects_at: ExportObjects::objects.at(),
    most: 512,
    count: Some((ExportObjects::numObjects, ExportObjects::index)),
};
const MANY_IMPORTS: ExportLayout = ExportLayout {
    fd: ImportObjects::fd,
    parent: Some(ImportObjects::hParent),
    objects_at: ImportObjects::objects.at(),
    most: 128,
    count: Some((ImportObjects::numObjects, ImportObjects::index)),
};
const INFO: ExportLayout = ExportLayout { fd: ExportObjectInfo::fd, parent: None, objects_at: 0, most: 0, count: None };

impl ExportLayout {
    /// Returns the handles that are named, by their index in the export.
    fn objects(&self, params: &[u8]) -> Option<Vec<(u32, Handle)>> {
        let (count, first) = match self.count {
            None => (self.most, 0),
            Some((count, first)) => (usize::from(count.get(params)?), u32::from(first.get(params)?)),
        };
        if count > self.most {
            return None;
        }
        (0..count).zip(first..).map(|(at, index)| Some((index, self.object(params, at)?))).collect()
    }

    fn object(&self, params: &[u8], at: usize) -> Option<Handle> {
        read_u32(params, self.objects_at + at * size_of::<u32>()).map(Handle)
    }

    fn parent(&self, params: &[u8]) -> Handle {
        self.parent.and_then(|parent| parent.get(params)).unwrap_or(Handle::NONE)
    }
}

const INVALID: CallEnd = CallEnd::Status(Status::INVALID_ARGUMENT);

impl Session {
    pub(crate) fn export(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let layout = match control.id {
            NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD => ONE_EXPORT,
            NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD => MANY_EXPORTS,
            _ => return Err(CallEnd::Status(Status::NOT_SUPPORTED)),
        };
        let token = self.token(flight, &layout)?;
        flight.confirm()?;
        let (token, is_new) = match token {
            Ok(token) => (token, false),
            Err(file) => (self.new_token(flight, file)?, true),
        };
        let objects = layout.objects(flight.params()).ok_or(INVALID)?;
        self.name_own_file(flight, &layout, &token)?;
        let names = [LockName::Client(control.client), LockName::Export(token.id)];
        let result = self.objects.locks.with(&names, || self.export_locked(flight, control, &token, &objects));
        match result {
            Ok(status) if status.is_ok() => {}
            // Nothing is on it: the file stands for nothing.
            _ if is_new => lock(&self.objects.files).remove_token(token.id),
            _ => {}
        }
        result?;
        flight.finish()
    }

    fn export_locked(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        token: &Token,
        objects: &[(u32, Handle)],
    ) -> Result<Status, CallEnd> {
        if !lock(&self.objects.files).knows_token(token.id) {
            // It was given up meanwhile.
            return Err(INVALID);
        }
        let is_many = control.id == NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD;
        let room = ExportObjects::maxObjects.get(flight.params()).filter(|_| is_many).unwrap_or(1);
        if !lock(&self.objects.files).reserve_room(token.id, room) {
            return Err(CallEnd::Insufficient("the container's exports have room for as many objects as they may"));
        }
        // The driver gives out whatever can be duplicated. Whoever took a channel group in would
        // have one that nobody counts; the page about the card, as the driver tells it.
        let is_memory = |object: Handle| {
            let known = lock(&self.objects.accounts).object(ObjectName::new(control.client, object));
            known.is_some_and(|known| matches!(known.kind, Kind::Memory | Kind::Pinned))
        };
        if !objects.iter().all(|(_, object)| *object == Handle::NONE || is_memory(*object)) {
            return Err(CallEnd::Status(Status::NOT_SUPPORTED));
        }
        let mut held: Vec<(u32, Hold)> = Vec::new();
        for (index, object) in objects.iter().filter(|(_, object)| *object != Handle::NONE) {
            let hold = lock(&self.objects.accounts).hold(ObjectName::new(control.client, *object));
            match hold {
                Ok(hold) => held.push((*index, hold)),
                Err(refusal) => {
                    held.into_iter().for_each(|(_, hold)| lock(&self.objects.accounts).release(hold));
                    return Err(refusal.into());
                }
            }
        }
        let status = flight.execute(self.driver.as_ref());
        let exported = status.is_ok_and(Status::is_ok);
        let mut accounts = lock(&self.objects.accounts);
        for (index, hold) in held {
            if exported {
                accounts.export(hold, token.id, index);
            } else {
                accounts.release(hold);
            }
        }
        // Nothing took the place of what was there. Whoever imported from there would be told that
        // it has what the handle names that it has written where the driver leaves the new one's.
        let emptied = objects.iter().filter(|(_, object)| exported && *object == Handle::NONE);
        emptied.for_each(|(index, _)| accounts.unexport(token.id, *index));
        status
    }

    pub(crate) fn import(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let layout = match control.id {
            NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD => ONE_IMPORT,
            NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD => MANY_IMPORTS,
            NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO => INFO,
            _ => return Err(CallEnd::Status(Status::NOT_SUPPORTED)),
        };
        // A file to which nothing was exported here, be it another container's.
        let token = self.token(flight, &layout)?.map_err(|_| INVALID)?;
        self.name_own_file(flight, &layout, &token)?;
        let objects = layout.objects(flight.params()).ok_or(INVALID)?;
        match objects.as_slice() {
            [] => {
                flight.execute(self.driver.as_ref())?;
                flight.finish()
            }
            [(index, _)] => self.import_one(flight, control, &layout, &token, *index),
            _ => self.import_many(flight, control, &layout, &token, &objects),
        }
    }

    fn import_one(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        layout: &ExportLayout,
        token: &Token,
        index: u32,
    ) -> Result<Answer, CallEnd> {
        let parent = layout.parent(flight.params());
        let made = self.make_object(
            flight,
            &ObjectAlloc {
                client: control.client,
                parent,
                handle: (Holder::Buffer(0), layout.objects_at),
                source: AllocSource::Import(token.id, index),
            },
        )?;
        self.finish_object(flight, made.map(|(made, _)| made))
    }

    /// Several at once: the driver makes all or none.
    fn import_many(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        layout: &ExportLayout,
        token: &Token,
        objects: &[(u32, Handle)],
    ) -> Result<Answer, CallEnd> {
        let client = control.client;
        let parent = layout.parent(flight.params());
        let names = [LockName::Client(client), LockName::Export(token.id)];
        let made = self.objects.locks.with(&names, || -> Result<Vec<ObjectName>, CallEnd> {
            self.objects.is_parent(client, parent)?;
            let mut reserved = Vec::new();
            for (index, _) in objects {
                let asked = lock(&self.objects.accounts).reserve_import(token.id, *index, client);
                match asked {
                    Ok(reservation) => reserved.push(reservation),
                    Err(refusal) => {
                        reserved.into_iter().for_each(|reservation| lock(&self.objects.accounts).cancel(reservation));
                        return Err(refusal.into());
                    }
                }
            }
            let status = flight.execute(self.driver.as_ref());
            let mut accounts = lock(&self.objects.accounts);
            if !status.is_ok_and(Status::is_ok) {
                reserved.into_iter().for_each(|reservation| accounts.cancel(reservation));
                return status.map(|_| Vec::new());
            }
            let mut made = Vec::new();
            for (at, reservation) in reserved.into_iter().enumerate() {
                let object = layout.object(flight.params(), at).unwrap_or(Handle::NONE);
                let placement = account::Placement::under(parent, object);
                match accounts.commit(reservation, placement, None) {
                    Ok(_) => made.push(ObjectName { client, object }),
                    Err(not) => accounts.cancel(not.reservation),
                }
            }
            drop(accounts);
            made.iter().for_each(|made| self.replace_handle(*made));
            Ok(made)
        })?;
        self.finish_objects(flight, made)
    }

    /// Returns the token that a control's file is; the file itself where it is a token for
    /// nothing.
    fn token(&self, flight: &mut InFlightCall<'_>, layout: &ExportLayout) -> Result<Result<Token, Arc<File>>, CallEnd> {
        let fd = layout.fd.get(flight.params()).ok_or(INVALID)?;
        let file = self.control_file(flight, fd)?;
        let mut files = lock(&self.objects.files);
        let token = files.token(&file).map_err(errno)?;
        if let Some(token) = &token {
            files.set_unheld(token.id, None);
        }
        Ok(token.ok_or(file))
    }

    fn new_token(&self, flight: &InFlightCall<'_>, file: Arc<File>) -> Result<Token, CallEnd> {
        if !lock(&self.objects.files).has_room_for_a_token() {
            self.drop_unheld_tokens(crate::TRANSIT);
            if !lock(&self.objects.files).has_room_for_a_token() {
                return Err(CallEnd::Insufficient("the container holds as many exports open as it may"));
            }
        }
        let own = self.driver.open(Node::Control).map_err(errno)?;
        Ok(lock(&self.objects.files).add_token(file, own, flight.pid))
    }

    /// The driver is told the mediator's own file where the caller's struct names its token.
    fn name_own_file(
        &self,
        flight: &mut InFlightCall<'_>,
        layout: &ExportLayout,
        token: &Token,
    ) -> Result<(), CallEnd> {
        if layout.fd.get(flight.params()).is_none() {
            return Err(INVALID);
        }
        flight.files.push(FileField { holder: Holder::Buffer(0), offset: layout.fd.at(), file: token.own.clone() });
        Ok(())
    }
}
