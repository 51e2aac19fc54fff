//! One call as the simulated driver looks at it.

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
    /// The struct together with the buffer that the pointer at `offset` of it points to.
    pub(super) fn args_and_buffer(&mut self, offset: usize) -> (&mut [u8], Option<&mut [u8]>) {
        let buffer = self.buffers.iter_mut().find(|buffer| buffer.holder == Holder::Args && buffer.offset == offset);
        (self.args, buffer.map(|buffer| buffer.bytes.as_mut_slice()))
    }

    /// The file that the number at `offset` of the struct names.
    pub(super) fn file_in_args(&self, offset: usize) -> Option<&DeviceFile> {
        self.file_in(Holder::Args, offset)
    }

    /// The file that the number at `offset` of the buffer names which hangs at `pointer` of the struct.
    pub(super) fn file_in_buffer(&self, pointer: usize, offset: usize) -> Option<&DeviceFile> {
        let index = self.buffers.iter().position(|buffer| buffer.holder == Holder::Args && buffer.offset == pointer)?;
        self.file_in(Holder::Buffer(index), offset)
    }

    fn file_in(&self, holder: Holder, offset: usize) -> Option<&DeviceFile> {
        self.files.iter().find(|field| field.holder == holder && field.offset == offset).map(|field| &field.file)
    }
}
