use super::*;

type Disable = NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS;

#[test]
fn fields_are_little_endian_and_need_no_alignment() {
    let mut bytes = [0_u8; 1 + NVOS54_PARAMETERS::SIZE];
    let args = &mut bytes[1..];
    assert!(NVOS54_PARAMETERS::cmd.set(args, 0x2080_110b));
    assert!(NVOS54_PARAMETERS::params.set(args, 0x0102_0304_0506_0708));
    assert_eq!(args[8..12], [0x0b, 0x11, 0x80, 0x20]);
    assert_eq!(args[16..24], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(NVOS54_PARAMETERS::cmd.get(args), Some(0x2080_110b));
    assert_eq!(NVOS54_PARAMETERS::hClient.get(args), Some(Handle(0)));
}

#[test]
fn bytes_that_are_not_given_are_zeros() {
    let args = crate::encode!(NVOS00_PARAMETERS { hObjectOld: Handle(7), status: 3 });
    assert_eq!(args, [0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0]);
}

#[test]
fn fields_beyond_the_bytes_are_neither_read_nor_written() {
    let mut short = [7_u8; 11];
    assert_eq!(NVOS54_PARAMETERS::hObject.get(&short), Some(Handle(0x0707_0707)));
    assert_eq!(NVOS54_PARAMETERS::cmd.get(&short), None, "its last byte is missing");
    assert!(!NVOS54_PARAMETERS::cmd.set(&mut short, 0));
    assert_eq!(short, [7; 11]);
}

#[test]
fn arrays_are_read_whole_or_by_element() {
    let mut params = [0_u8; Disable::SIZE];
    assert!(Disable::hChannelList.element(63).unwrap().set(&mut params, Handle(9)));
    assert_eq!(params[532], 9);
    let channels = Disable::hChannelList.get(&params).unwrap();
    assert_eq!((channels[62], channels[63]), (Handle(0), Handle(9)));
    assert!(Disable::hChannelList.element(64).is_none());
    assert!(Disable::hClientList.set(&mut params, [Handle(1); 64]));
    assert_eq!(Disable::hClientList.element(5).unwrap().get(&params), Some(Handle(1)));
    assert_eq!(
        Disable::hChannelList.element(0).unwrap().get(&params),
        Some(Handle(0)),
        "the list behind it is untouched"
    );
}

#[test]
fn layouts_of_a_struct_do_not_share_releases() {
    let structs: Vec<_> = all().collect();
    for (at, one) in structs.iter().enumerate() {
        for other in structs.iter().skip(at + 1).filter(|other| other.name == one.name) {
            let apart = one.releases.before.is_some_and(|end| other.releases.since.is_some_and(|first| end <= first));
            assert!(apart, "{} twice in one release; layouts are listed oldest first", one.name);
        }
        for (field, next) in one.fields.iter().zip(one.fields.iter().skip(1)) {
            // Those of a union lie at one place.
            assert!(field.at <= next.at, "{}: {} before {}", one.name, field.path, next.path);
        }
    }
}

/// 545 put `gpuInstanceId` before it.
#[test]
fn an_exported_objects_metadata_moved_with_545() {
    type Info = NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS;
    let has = |major| Info::RELEASES.contain(crate::Abi::of(DriverRelease::new(major, 29, 2)).unwrap());
    assert_eq!([535, 545, 550].map(has), [false, true, true]);
    assert_eq!(Info::metadata.at(), 14);
}
