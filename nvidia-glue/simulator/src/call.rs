//! One call of the simulated driver.

use abi::params::{Field, ptr};
use driver::{Buffer, DeviceFile, FileField, Holder};

use super::open_files::FileId;

#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The file that it is made on.
    pub(super) file: FileId,
    pub(super) args: &'a mut [u8],
    pub(super) buffers: &'a mut [Buffer],
    pub(super) files: &'a [FileField],
}

impl Call<'_> {
    /// The struct together with the buffer that a pointer of it points to.
    pub(super) fn args_and_buffer(&mut self, pointer: Field<ptr>) -> (&mut [u8], Option<&mut [u8]>) {
        let offset = pointer.at();
        let buffer = self.buffers.iter_mut().find(|buffer| buffer.holder == Holder::Args && buffer.offset == offset);
        (self.args, buffer.map(|buffer| buffer.bytes.as_mut_slice()))
    }

    /// The file that a number in the struct names.
    pub(super) fn file_in_args(&self, number: Field<i32>) -> Option<&DeviceFile> {
        self.file_in(Holder::Args, number)
    }

    /// The file that a number in the buffer names that a pointer of the struct points to.
    pub(super) fn file_in_buffer(&self, pointer: Field<ptr>, number: Field<i32>) -> Option<&DeviceFile> {
        self.file_in(Holder::Buffer(self.buffer(pointer)?), number)
    }

    /// Bytes of the list that a pointer in a buffer points to, which a pointer of the struct points to.
    pub(super) fn list_in_buffer(&mut self, pointer: Field<ptr>, list: Field<ptr>) -> Option<&mut Vec<u8>> {
        let holder = Holder::Buffer(self.buffer(pointer)?);
        let list = self.buffers.iter_mut().find(|buffer| buffer.offset == list.at() && buffer.holder == holder);
        list.map(|buffer| &mut buffer.bytes)
    }

    fn buffer(&self, pointer: Field<ptr>) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.holder == Holder::Args && buffer.offset == pointer.at())
    }

    fn file_in(&self, holder: Holder, number: Field<i32>) -> Option<&DeviceFile> {
        let offset = number.at();
        self.files.iter().find(|field| field.holder == holder && field.offset == offset).map(|field| &field.file)
    }
}
