//! Memory that a recorded program has of the cards and of the host: said by the trace alone, from
//! what the driver answered then. Nothing here asks the accounts, or is made as they are: a piece
//! of memory is there for as long as something in these tables has it.

use abi::{
    classes::{
        HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A, NV01_MEMORY_LOCAL_USER, NV01_MEMORY_SYSTEM, NV01_ROOT,
        NV01_ROOT_CLIENT, NV01_ROOT_NON_PRIV,
    },
    layout::{read_u32, read_u64},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use account::Card;
use testing::replay::is_escape;
use trace::Ioctl;

const KIB: u64 = 1 << 10;
/// Memory is handed out in such pieces.
const GRANULE: u64 = 64 * KIB;
/// Memory that a context hides from allocations, by its groups of channels: one of the graphics
/// engine and three of copy engines (docs/driver-facts.md).
const GRAPHICS_GROUP: u64 = 8256 * KIB;
const COPY_GROUP: u64 = 256 * KIB;

#[derive(Debug)]
struct Piece {
    of: Card,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Object {
    parent: u32,
    card: Option<Card>,
    /// Its own memory, or its group's.
    piece: Option<Arc<Piece>>,
}

/// An external range of a UVM file.
#[derive(Debug)]
struct Range {
    length: u64,
    /// By their addresses.
    maps: BTreeMap<u64, Arc<Piece>>,
}

type Client = u32;
type Handle = u32;
type File = u32;

#[derive(Debug)]
pub(super) struct Expected {
    cards: Vec<Card>,
    pieces: Vec<Weak<Piece>>,
    clients: BTreeMap<Client, File>,
    /// By the file that keeps another one open.
    registered: BTreeMap<File, File>,
    closed: BTreeSet<File>,
    objects: BTreeMap<(Client, Handle), Object>,
    ranges: BTreeMap<(File, u64), Range>,
    channels: BTreeMap<(File, Client, Handle), Arc<Piece>>,
    exports: BTreeMap<(File, u32), Arc<Piece>>,
    pools: BTreeMap<(File, u64), Arc<Piece>>,
    /// Memory that was mapped for the processor.
    host_mappings: BTreeMap<File, Arc<Piece>>,
    /// By process and address: bytes on every card.
    managed: BTreeMap<(i32, u64), u64>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    read_u32(bytes, at).unwrap()
}

fn long(bytes: &[u8], at: usize) -> u64 {
    read_u64(bytes, at).unwrap()
}

fn short(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
}

impl Expected {
    pub(super) fn of(cards: &[Card]) -> Self {
        Self {
            cards: cards.to_vec(),
            pieces: Vec::new(),
            clients: BTreeMap::new(),
            registered: BTreeMap::new(),
            closed: BTreeSet::new(),
            objects: BTreeMap::new(),
            ranges: BTreeMap::new(),
            channels: BTreeMap::new(),
            exports: BTreeMap::new(),
            pools: BTreeMap::new(),
            host_mappings: BTreeMap::new(),
            managed: BTreeMap::new(),
        }
    }

    /// Returns what is used of a card, or of the host's memory.
    pub(super) fn used(&self, of: Card) -> u64 {
        let there = self.pieces.iter().filter_map(Weak::upgrade).filter(|piece| piece.of == of);
        let managed = if of == Card::HOST { 0 } else { self.managed.values().sum() };
        there.map(|piece| piece.bytes).sum::<u64>() + managed
    }

    fn piece(&mut self, of: Card, bytes: u64) -> Option<Arc<Piece>> {
        let piece = Arc::new(Piece { of, bytes });
        self.pieces.retain(|piece| piece.strong_count() > 0);
        self.pieces.push(Arc::downgrade(&piece));
        Some(piece)
    }

    /// A call that the driver took.
    pub(super) fn call(&mut self, call: &Ioctl) {
        let args = call.args.after();
        let params = call.buffers.first().map(|buffer| buffer.bytes.after()).unwrap_or_default();
        let named = call.files.first().and_then(|field| field.file);
        match call.command & 0xff {
            0x27 if is_escape(call, 0x27) => {
                // What the kernel needs to remember pages of the program's own.
                let length = long(args, 32) + 1;
                let piece = self.piece(Card::HOST, length / 128 + 4096);
                self.add((word(args, 0), word(args, 4), word(args, 8)), piece);
            }
            0x29 if is_escape(call, 0x29) => self.free(word(args, 0), word(args, 8)),
            0x2a if is_escape(call, 0x2a) => self.control(word(args, 0), word(args, 8), params, named),
            0x2b if is_escape(call, 0x2b) => self.alloc(call, args, params),
            0x34 if is_escape(call, 0x34) => {
                let piece = self.objects[&(word(args, 12), word(args, 16))].piece.clone();
                self.add((word(args, 0), word(args, 4), word(args, 8)), piece);
            }
            0x4e if is_escape(call, 0x4e) => {
                let piece = self.objects[&(word(args, 0), word(args, 8))].piece.clone();
                if let Some(piece) = piece.filter(|piece| piece.of == Card::HOST) {
                    self.host_mappings.insert(named.unwrap(), piece);
                }
            }
            0xc9 if is_escape(call, 0xc9) => {
                self.registered.insert(call.file, named.unwrap());
            }
            _ if call.command < 0x100 => self.uvm(call, args),
            _ => {}
        }
    }

    fn add(&mut self, (client, parent, handle): (Client, Handle, Handle), piece: Option<Arc<Piece>>) {
        let card = self.objects.get(&(client, parent)).and_then(|parent| parent.card);
        let before = self.objects.insert((client, handle), Object { parent, card, piece });
        assert!(before.is_none(), "{handle:#x} is there twice");
    }

    fn alloc(&mut self, call: &Ioctl, args: &[u8], params: &[u8]) {
        let (client, parent, handle, class) = (word(args, 0), word(args, 4), word(args, 8), word(args, 12));
        let above = self.objects.get(&(client, parent));
        let (card, group) = above.map_or((None, None), |above| (above.card, above.piece.clone()));
        let size = || long(params, 64).next_multiple_of(GRANULE);
        let piece = match class {
            NV01_ROOT | NV01_ROOT_NON_PRIV | NV01_ROOT_CLIENT => {
                self.clients.insert(handle, call.file);
                return;
            }
            NV01_MEMORY_LOCAL_USER => self.piece(card.unwrap(), size()),
            NV01_MEMORY_SYSTEM => self.piece(Card::HOST, size()),
            // A group, by its engine; a channel has its group's.
            KEPLER_CHANNEL_GROUP_A => {
                self.piece(card.unwrap(), if word(params, 12) == 1 { GRAPHICS_GROUP } else { COPY_GROUP })
            }
            HOPPER_CHANNEL_GPFIFO_A => Some(group.unwrap()),
            _ => None,
        };
        self.add((client, parent, handle), piece);
        if class == 0x80 {
            let card = self.cards[word(params, 0) as usize];
            self.objects.get_mut(&(client, handle)).unwrap().card = Some(card);
        }
    }

    fn free(&mut self, client: Client, handle: Handle) {
        if handle == client {
            return self.client_gone(client);
        }
        self.objects.remove(&(client, handle));
        let of_client = self.objects.range((client, 0)..=(client, u32::MAX));
        let below = of_client.filter(|(_, object)| object.parent == handle);
        let below: Vec<Handle> = below.map(|((_, handle), _)| *handle).collect();
        below.into_iter().for_each(|below| self.free(client, below));
    }

    fn client_gone(&mut self, client: Client) {
        self.clients.remove(&client);
        self.objects.retain(|(of, _), _| *of != client);
    }

    /// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD` and `IMPORT_OBJECTS_FROM_FD`.
    fn control(&mut self, client: Client, id: u32, params: &[u8], file: Option<File>) {
        let objects = |at: usize, count: usize| {
            let first = short(params, count + 2);
            (0..short(params, count)).map(move |index| (first + index, word(params, at + 4 * index)))
        };
        let index = |index: usize| u32::try_from(index).unwrap();
        match id {
            0x3d0b => {
                for (at, handle) in objects(76, 2124) {
                    let piece = self.objects[&(client, handle)].piece.clone().unwrap();
                    self.exports.insert((file.unwrap(), index(at)), piece);
                }
            }
            0x3d0c => {
                for (at, handle) in objects(8, 648) {
                    let piece = self.exports[&(file.unwrap(), index(at))].clone();
                    self.add((client, word(params, 4), handle), Some(piece));
                }
            }
            _ => {}
        }
    }

    fn uvm(&mut self, call: &Ioctl, args: &[u8]) {
        let file = call.file;
        match call.command {
            // UVM_REGISTER_GPU_VASPACE's end: the only card's here.
            26 => {
                self.channels.retain(|(of, ..), _| *of != file);
                let own = self.ranges.iter_mut().filter(|((of, _), _)| *of == file);
                own.for_each(|(_, range)| range.maps.clear());
            }
            27 => {
                let (client, channel) = (word(args, 20), word(args, 24));
                let piece = self.objects[&(client, channel)].piece.clone().unwrap();
                self.channels.insert((file, client, channel), piece);
            }
            28 => drop(self.channels.remove(&(file, word(args, 16), word(args, 20)))),
            33 => self.map(file, args),
            34 => {
                self.ranges.remove(&(file, long(args, 0)));
                self.pools.remove(&(file, long(args, 0)));
            }
            68 => {
                let piece = self.piece(Card::HOST, long(args, 8)).unwrap();
                self.pools.insert((file, long(args, 0)), piece);
            }
            73 => {
                let range = Range { length: long(args, 8), maps: BTreeMap::new() };
                self.ranges.insert((file, long(args, 0)), range);
            }
            38 | 66 | 74 | 78 => panic!("what {} lets go of is not told here yet", call.name.as_deref().unwrap()),
            _ => {}
        }
    }

    fn map(&mut self, file: File, args: &[u8]) {
        let (at, length) = (long(args, 0), long(args, 8));
        let piece = self.objects[&(word(args, 9252), word(args, 9256))].piece.clone().unwrap();
        let (base, range) = self.ranges.range_mut((file, 0)..=(file, at)).next_back().unwrap();
        assert!(at + length <= base.1 + range.length, "{at:#x} is in no range");
        range.maps.insert(at, piece);
    }

    pub(super) fn mapped(&mut self, process: i32, address: u64, length: u64) {
        assert!(self.managed.insert((process, address), length).is_none());
    }

    pub(super) fn unmapped(&mut self, process: i32, address: u64, length: u64) {
        assert_eq!(self.managed.remove(&(process, address)), Some(length));
    }

    /// A process has ended, or executes another program.
    pub(super) fn memory_gone(&mut self, process: i32) {
        self.managed.retain(|(of, _), _| *of != process);
    }

    /// Nobody has a file open any more, nor a mapping of it.
    pub(super) fn closed(&mut self, file: File) {
        self.closed.insert(file);
        self.registered.remove(&file);
        self.ranges.retain(|(of, _), _| *of != file);
        self.pools.retain(|(of, _), _| *of != file);
        self.channels.retain(|(of, ..), _| *of != file);
        self.exports.retain(|(of, _), _| *of != file);
        self.host_mappings.remove(&file);
        let is_gone = |file: &File| self.closed.contains(file) && !self.registered.values().any(|kept| kept == file);
        let gone = self.clients.iter().filter(|(_, file)| is_gone(file));
        let gone: Vec<Client> = gone.map(|(client, _)| *client).collect();
        gone.into_iter().for_each(|client| self.client_gone(client));
    }
}
