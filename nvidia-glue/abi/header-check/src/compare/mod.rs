//! Comparison of all tables with one release.

mod classes;
mod controls;
mod escapes;
mod structs;
mod uvm;

pub(crate) use controls::named_params;

use std::{collections::BTreeSet, path::Path};

use abi::{
    Abi,
    classes::{OS_DESCRIPTOR, OS_EVENT, SYSTEM_MEMORY, classes},
    controls::controls,
    escapes::ESCAPES,
    layout::{Length, Pointer, Width},
    status::Status,
    uvm::{UVM_COMMANDS, UVM_INITIALIZE},
};

use crate::{
    compiled::{CompileError, Compiled, compile},
    driver_source::DriverSource,
    release::Release,
    report::Report,
    types::Field,
};

/// All that is known of a release.
#[derive(Debug)]
pub(crate) struct Headers {
    pub(crate) release: String,
    pub(crate) abi: Abi,
    pub(crate) compiled: Compiled,
    pub(crate) source: DriverSource,
}

impl Headers {
    /// Reads the release in a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, CompileError> {
        let release = Release::open(folder)?;
        let source = DriverSource::read(&release)?;
        let mut names: BTreeSet<String> = controls().map(|row| row.name.to_owned()).collect();
        names.extend(ESCAPES.iter().map(|row| row.name.to_owned()));
        names.extend(UVM_COMMANDS.iter().map(|row| row.name.to_owned()));
        names.extend(classes().map(|row| row.name.to_owned()));
        names.extend(source.pointing.iter().cloned());
        let enumerators: Vec<&str> = STATUSES.iter().map(|(name, _)| *name).collect();
        names.extend(named_numbers().map(|(name, _)| name.to_owned()));
        let compiled = compile(&release, &names, &enumerators, is_control_name)?;
        Ok(Self { abi: Abi::nearest(release.version), release: release.name, compiled, source })
    }
}

/// Numbers that code names, by NVIDIA's names.
const NUMBERS: [(&str, u32); 4] = [
    ("NV01_EVENT_OS_EVENT", OS_EVENT),
    ("NV01_MEMORY_SYSTEM_OS_DESCRIPTOR", OS_DESCRIPTOR),
    ("NV01_MEMORY_SYSTEM", SYSTEM_MEMORY),
    ("UVM_INITIALIZE", UVM_INITIALIZE),
];

/// Statuses, which are enumerators.
pub(crate) const STATUSES: [(&str, Status); 18] = [
    ("NV_OK", Status::OK),
    ("NV_ERR_BUSY_RETRY", Status::BUSY_RETRY),
    ("NV_ERR_INSERT_DUPLICATE_NAME", Status::INSERT_DUPLICATE_NAME),
    ("NV_ERR_INSUFFICIENT_RESOURCES", Status::INSUFFICIENT_RESOURCES),
    ("NV_ERR_INSUFFICIENT_PERMISSIONS", Status::INSUFFICIENT_PERMISSIONS),
    ("NV_ERR_INVALID_ARGUMENT", Status::INVALID_ARGUMENT),
    ("NV_ERR_INVALID_CHANNEL", Status::INVALID_CHANNEL),
    ("NV_ERR_INVALID_CLASS", Status::INVALID_CLASS),
    ("NV_ERR_INVALID_CLIENT", Status::INVALID_CLIENT),
    ("NV_ERR_INVALID_DEVICE", Status::INVALID_DEVICE),
    ("NV_ERR_INVALID_EVENT", Status::INVALID_EVENT),
    ("NV_ERR_INVALID_OFFSET", Status::INVALID_OFFSET),
    ("NV_ERR_INVALID_REQUEST", Status::INVALID_REQUEST),
    ("NV_ERR_INVALID_STATE", Status::INVALID_STATE),
    ("NV_ERR_NO_MEMORY", Status::NO_MEMORY),
    ("NV_ERR_NOT_SUPPORTED", Status::NOT_SUPPORTED),
    ("NV_ERR_OBJECT_NOT_FOUND", Status::OBJECT_NOT_FOUND),
    ("NV_ERR_STATE_IN_USE", Status::STATE_IN_USE),
];

/// All numbers that code names.
fn named_numbers() -> impl Iterator<Item = (&'static str, u32)> {
    NUMBERS.into_iter().chain(STATUSES.into_iter().map(|(name, status)| (name, status.0)))
}

fn is_control_name(name: &str) -> bool {
    name.contains("_CTRL_") && !name.ends_with("_MESSAGE_ID")
}

/// Compares all tables with a release.
pub(crate) fn compare(headers: &Headers) -> Report {
    let mut report = Report::new(&headers.release);
    escapes::compare(headers, &mut report);
    uvm::compare(headers, &mut report);
    classes::compare(headers, &mut report);
    controls::compare(headers, &mut report);
    structs::compare(headers, &mut report);
    report
}

/// Fields that hold the driver's status.
fn status_at(fields: &[Field]) -> Option<u64> {
    let is_status = |field: &&Field| {
        let name = field.path.rsplit('.').next().unwrap_or_default();
        field.size == 4 && !field.path.contains("[]") && matches!(name, "status" | "Status" | "rmStatus")
    };
    fields.iter().find(is_status).map(|field| field.at)
}

/// Names of all pointers, with their offsets.
fn pointers(fields: &[Field]) -> impl Iterator<Item = &Field> {
    fields.iter().filter(|field| field.pointer)
}

/// Compares a pointer of a row with the field at its offset.
fn compare_pointer(report: &mut Report, row: &str, fields: &[Field], pointer: &Pointer) {
    let at = u64::from(pointer.at);
    let found = pointers(fields).find(|field| field.at == at);
    report.equal(row, "pointer", Some(at), found.map(|field| field.at));
    let (count_at, width) = match pointer.length {
        Length::Fixed(_) => return,
        Length::Counted { at, width, .. } => (at, width),
        Length::Squared { at, .. } => (at, Width::U32),
    };
    let count_at = u64::from(count_at);
    let number = fields.iter().find(|field| field.at == count_at && !field.composed && !field.pointer);
    report.equal(row, "number of elements", Some((count_at, bytes(width))), number.map(|field| (field.at, field.size)));
}

const fn bytes(width: Width) -> u64 {
    match width {
        Width::U8 => 1,
        Width::U16 => 2,
        Width::U32 => 4,
        Width::U64 => 8,
    }
}

/// Compares a row's descriptors with the fields that are called one.
fn compare_files(report: &mut Report, row: &str, fields: &[Field], ours: &[u64]) {
    let is_file = |field: &&Field| {
        let name = field.path.rsplit('.').next().unwrap_or_default().to_lowercase();
        field.size == 4 && (name.ends_with("fd") || name.ends_with("descriptor"))
    };
    let theirs: Vec<u64> = fields.iter().filter(is_file).map(|field| field.at).collect();
    report.equal(row, "descriptors", ours.to_vec(), theirs);
}
