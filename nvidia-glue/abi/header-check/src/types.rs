//! Structs as the C compiler lays them out, read from its debug information.

use std::collections::HashMap;

use gimli::constants as dw;
use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, Unit};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// All types of a compiled file.
#[derive(Debug, Default)]
pub(crate) struct Types {
    types: HashMap<usize, Type>,
    names: HashMap<String, usize>,
}

/// A type of C.
#[derive(Debug)]
struct Type {
    kind: Kind,
    size: Option<u64>,
    /// Type that it is an array or another name of.
    of: Option<usize>,
    /// Elements of an array.
    count: u64,
    members: Vec<Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Struct,
    Array,
    Alias,
    Pointer,
    Number,
}

#[derive(Debug)]
struct Member {
    name: Option<String>,
    at: u64,
    of: usize,
}

/// A field of a struct, or of a struct within it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    /// Name from the struct down, `data.AllocSize.hMemory`; `list[].field` within an array's
    /// elements.
    pub(crate) path: String,
    /// Offset in the struct; of the first element where it is in an array.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// True for a pointer.
    pub(crate) pointer: bool,
    /// True where it has fields of its own.
    pub(crate) composed: bool,
}

impl Types {
    /// Reads the debug information of a compiled file.
    pub(crate) fn read(dwarf: &Dwarf<Slice<'_>>) -> Result<Self, gimli::Error> {
        let mut types = Self::default();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            types.read_unit(dwarf, &dwarf.unit(header)?)?;
        }
        Ok(types)
    }

    fn read_unit(&mut self, dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>) -> Result<(), gimli::Error> {
        // Offsets of the types that enclose the entry, by depth; `None`: what encloses it is no
        // type.
        let mut parents: Vec<Option<usize>> = Vec::new();
        let mut depth: isize = 0;
        let mut entries = unit.entries();
        while let Some((change, entry)) = entries.next_dfs()? {
            depth += change;
            parents.truncate(usize::try_from(depth).unwrap_or_default());
            let parent = parents.last().copied().flatten();
            parents.push(self.read_entry(dwarf, unit, entry, parent)?);
        }
        Ok(())
    }

    /// Reads a type, or a part of the type that encloses it.
    fn read_entry(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        unit: &Unit<Slice<'_>>,
        entry: &DebuggingInformationEntry<'_, '_, Slice<'_>>,
        parent: Option<usize>,
    ) -> Result<Option<usize>, gimli::Error> {
        let number = |name| Ok::<_, gimli::Error>(entry.attr_value(name)?.and_then(|value| value.udata_value()));
        let name = match entry.attr_value(dw::DW_AT_name)? {
            Some(value) => Some(dwarf.attr_string(unit, value)?.to_string_lossy().into_owned()),
            None => None,
        };
        let of = match entry.attr_value(dw::DW_AT_type)? {
            Some(AttributeValue::UnitRef(offset)) => Some(offset.0),
            _ => None,
        };
        let kind = match entry.tag() {
            dw::DW_TAG_structure_type | dw::DW_TAG_union_type => Kind::Struct,
            dw::DW_TAG_array_type => Kind::Array,
            dw::DW_TAG_typedef | dw::DW_TAG_const_type | dw::DW_TAG_volatile_type => Kind::Alias,
            dw::DW_TAG_pointer_type => Kind::Pointer,
            dw::DW_TAG_base_type | dw::DW_TAG_enumeration_type => Kind::Number,
            dw::DW_TAG_member => {
                let bits = number(dw::DW_AT_data_bit_offset)?.unwrap_or_default();
                let at = number(dw::DW_AT_data_member_location)?.unwrap_or(bits / 8);
                if let (Some(parent), Some(of)) = (parent.and_then(|at| self.types.get_mut(&at)), of) {
                    parent.members.push(Member { name, at, of });
                }
                return Ok(None);
            }
            dw::DW_TAG_subrange_type => {
                // An array without a bound has no elements of its own.
                let last = number(dw::DW_AT_upper_bound)?;
                let count = number(dw::DW_AT_count)?.or(last.map(|last| last.saturating_add(1))).unwrap_or(0);
                if let Some(parent) = parent.and_then(|at| self.types.get_mut(&at)) {
                    parent.count *= count;
                }
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let offset = entry.offset().0;
        let size = number(dw::DW_AT_byte_size)?;
        self.types.insert(offset, Type { kind, size, of, count: 1, members: Vec::new() });
        // A declaration without a body has no size.
        if let Some(name) = name.filter(|_| kind == Kind::Alias || size.is_some()) {
            self.names.insert(name, offset);
        }
        Ok(Some(offset))
    }

    /// Bytes of a type, by its name; `None`: there is none.
    pub(crate) fn size_of(&self, name: &str) -> Option<u64> {
        self.size_at(*self.names.get(name)?)
    }

    fn size_at(&self, offset: usize) -> Option<u64> {
        let own = self.types.get(&offset)?;
        match own.kind {
            Kind::Alias => self.size_at(own.of?),
            Kind::Array => Some(own.count * self.size_at(own.of?)?),
            _ => own.size,
        }
    }

    /// Names of all types that have one.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Fields of a struct, those of structs within it too; `None`: there is no type of that name.
    pub(crate) fn fields_of(&self, name: &str) -> Option<Vec<Field>> {
        let mut fields = Vec::new();
        self.add_fields(*self.names.get(name)?, 0, "", &mut fields);
        Some(fields)
    }

    fn add_fields(&self, offset: usize, at: u64, prefix: &str, fields: &mut Vec<Field>) {
        let Some(own) = self.types.get(&offset) else { return };
        match (own.kind, own.of) {
            (Kind::Alias, Some(of)) => self.add_fields(of, at, prefix, fields),
            (Kind::Array, Some(of)) if own.count > 0 => {
                // Those of the first element stand for all.
                self.add_fields(of, at, &format!("{prefix}[]"), fields);
            }
            (Kind::Struct, _) => {
                for member in &own.members {
                    self.add_member(member, at, prefix, fields);
                }
            }
            _ => {}
        }
    }

    fn add_member(&self, member: &Member, at: u64, prefix: &str, fields: &mut Vec<Field>) {
        let at = at + member.at;
        // The members of a struct without a name are the outer one's.
        let path = match &member.name {
            Some(name) if prefix.is_empty() => name.clone(),
            Some(name) => format!("{prefix}.{name}"),
            None => prefix.to_owned(),
        };
        let before = fields.len();
        self.add_fields(member.of, at, &path, fields);
        if member.name.is_some() {
            let composed = fields.len() > before;
            let pointer = self.is_pointer(member.of);
            let size = self.size_at(member.of).unwrap_or_default();
            fields.insert(before, Field { path, at, size, pointer, composed });
        }
    }

    /// Returns whether a type is a pointer, or an array of them.
    fn is_pointer(&self, offset: usize) -> bool {
        let Some(own) = self.types.get(&offset) else { return false };
        match (own.kind, own.of) {
            (Kind::Pointer, _) => true,
            (Kind::Alias | Kind::Array, Some(of)) => self.is_pointer(of),
            _ => false,
        }
    }
}
