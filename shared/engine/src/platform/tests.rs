//! Every system gives the same bytes.

use super::*;

#[test]
fn bytes_are_read_and_written_where_they_belong() {
    let file = tempfile::tempfile().unwrap();
    make_sparse(&file);
    file.set_len(1 << 20).unwrap();
    write_all_at(&file, b"there", 700_000).unwrap();
    write_all_at(&file, b"here", 5).unwrap();
    write_all_at(&file, b"", 0).unwrap();
    let mut read = [0xff; 6];
    read_exact_at(&file, &mut read, 699_999).unwrap();
    assert_eq!(&read, b"\0there");
    read_exact_at(&file, &mut read, 4).unwrap();
    assert_eq!(&read, b"\0here\0");
    assert_eq!(read_at(&file, &mut read, (1 << 20) - 2).unwrap(), 2);
    let err = read_exact_at(&file, &mut read, (1 << 20) - 2).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(read_at(&file, &mut read, 2 << 20).unwrap(), 0);
}

#[test]
fn advice_about_a_mapping_leaves_its_bytes() {
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..300_001_u32).map(|at| (at % 251) as u8).collect();
    write_all_at(&file, &bytes, 0).unwrap();
    // SAFETY: nothing changes the file while it is mapped.
    let map = unsafe { Mmap::map(&file) }.unwrap();
    read_singly(&map);
    expect_huge_pages(&map, 0..bytes.len());
    read_mapped(&map, 8192..bytes.len());
    let_go(&map, 4096..290_000);
    assert!(map[..] == bytes[..]);
    read_mapped(&map, 5..6);
    let_go(&map, 5..6);
    assert!(map[..] == bytes[..]);
}

#[test]
fn buffers_for_direct_reads_are_aligned_and_apart() {
    for (count, len) in [(1, 1), (3, 5000), (20, (2 << 20) + 100), (2, 8 << 20)] {
        let mut buffers = read_buffers(count, len);
        assert_eq!(buffers.len(), count);
        for (number, buffer) in (1..).zip(&mut buffers) {
            assert_eq!(buffer.as_ptr() as usize % READ_ALIGNED, 0, "{count} of {len}");
            assert!((len..len + READ_ALIGNED).contains(&buffer.len()), "{count} of {len}");
            assert!(buffer.iter().all(|byte| *byte == 0), "{count} of {len}");
            buffer.fill(number);
        }
        for (number, buffer) in (1..).zip(&buffers) {
            assert!(buffer.iter().all(|byte| *byte == number), "{count} of {len}");
        }
    }
}

#[test]
fn the_memory_of_this_process_is_known_where_the_system_says_it() {
    let held = vec![1_u8; 64 << 20];
    let own = own_bytes().unwrap();
    assert!(own >= std::hint::black_box(&held).len() as u64, "{own}");
    #[cfg(any(target_vendor = "apple", windows))]
    assert!(free_bytes().unwrap() > 1 << 20);
}
