//! Cards that were not granted: each call that names or lists cards, asked through the mediator.

use abi::{
    Node, Status,
    classes::NV01_ROOT_CLIENT,
    controls::{
        NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
        NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS, NV0000_CTRL_CMD_GPU_GET_UUID_INFO,
        NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX,
    },
    layout::{read_u32, write_u32},
};

use super::world::{GIB, Machine, Program, struct_with, uuid_bytes};

/// Of four cards, the second and the last.
const GRANTED: [usize; 2] = [1, 3];

/// Asks a control of a client.
type Ask<'a> = dyn Fn(u32, &mut [u8]) -> Result<(), Status> + 'a;

/// With a program that was granted two of four cards: the ids of all cards, by index, and how to
/// ask.
fn with_two_of_four(test: impl FnOnce(&Machine, &[u32], &Ask<'_>)) {
    let machine = Machine::new(4);
    // Another container, of all cards, knows what they are called.
    let whole = machine.container(&[0, 1, 2, 3], GIB);
    let ids = asking(&whole.program(), |ask| {
        let mut attached = [0; 128];
        ask(NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &mut attached).unwrap();
        (0..4).map(|at| read_u32(&attached, 4 * at).unwrap()).collect::<Vec<u32>>()
    });
    let container = machine.container(&GRANTED, GIB);
    asking(&container.program(), |ask| test(&machine, &ids, ask));
}

fn asking<T>(program: &Program, work: impl FnOnce(&Ask<'_>) -> T) -> T {
    let control = program.open(Node::Control);
    let client = program.alloc(control, (0, 0, 0), NV01_ROOT_CLIENT, &mut []).unwrap();
    work(&|id, params| program.control(control, (client, client), id, params))
}

#[test]
fn a_mask_of_devices_has_the_granted_ones() {
    with_two_of_four(|_, _, ask| {
        let mut mask = [0; 4];
        ask(NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS, &mut mask).unwrap();
        assert_eq!(u32::from_le_bytes(mask), 0b1010);
    });
}

#[test]
fn active_devices_are_the_granted_ones() {
    with_two_of_four(|_, ids, ask| {
        let mut active = vec![0; 3076];
        ask(NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS, &mut active).unwrap();
        assert_eq!(read_u32(&active, 0), Some(2));
        let listed: Vec<u32> = (0..4).map(|at| read_u32(&active, 4 + 12 * at).unwrap()).collect();
        assert_eq!(listed, [ids[1], ids[3], 0, 0]);
    });
}

#[test]
fn a_uuid_is_known_of_granted_cards_only() {
    with_two_of_four(|machine, ids, ask| {
        const BINARY: u32 = 2;
        for (index, card) in machine.inventory.cards.iter().enumerate() {
            let mut params = vec![0; 272];
            params[..16].copy_from_slice(&uuid_bytes(&card.uuid));
            assert!(write_u32(&mut params, 256, BINARY));
            let told = ask(NV0000_CTRL_CMD_GPU_GET_UUID_INFO, &mut params);
            if GRANTED.contains(&index) {
                assert_eq!((told, read_u32(&params, 260)), (Ok(()), Some(ids[index])));
            } else {
                assert_eq!(told, Err(Status::OBJECT_NOT_FOUND));
            }
        }
    });
}

#[test]
fn peers_in_a_matrix_are_granted_cards() {
    with_two_of_four(|_, ids, ask| {
        let matrix = |first: usize, second: usize| {
            let mut params = struct_with(1352, &[(0, 1), (4, 1), (8, ids[first]), (40, ids[second])]);
            ask(NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX, &mut params)
        };
        assert_eq!(matrix(1, 3), Ok(()));
        assert_eq!(matrix(1, 0), Err(Status::INVALID_ARGUMENT));
        assert_eq!(matrix(2, 3), Err(Status::INVALID_ARGUMENT));
    });
}
