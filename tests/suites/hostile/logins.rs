//! A flood of wrong passwords at the console: few are checked, memory stays bounded, and a user with the
//! right password gets in.

use baton_e2e::hostile::logins::{Door, flood};

/// Most growth of the service: two hashes of 19 MiB each, and the buffers of a few hundred connections.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Number of wrong passwords sent at once.
const FLOOD: usize = 300;

#[tokio::test]
async fn a_flood_of_wrong_passwords_is_bounded_and_keeps_nobody_out() {
    let door = Door::open().await.expect("the service starts");
    let known = door.get_in(3, None).await.expect("the first log-in");
    let device = known.device.expect("the device is known from now on");
    let one = flood(&door, FLOOD, 66, 1).await.expect("every attempt is answered");
    assert!(one.looked_at <= 5 && one.looked_at + one.refused == FLOOD, "of one address: {one:?}");
    assert!(one.growth_bytes <= GROWTH_BYTES_MAX, "the service grew by {} bytes", one.growth_bytes);
    // The flood comes from many addresses, but too few to lock the name. At the same time a user on a known
    // device and a user on a new device log in.
    let (many, known, new) =
        tokio::join!(flood(&door, FLOOD, 100, 18), door.get_in(3, Some(&device)), door.get_in(4, None));
    let many = many.expect("every attempt is answered");
    assert!(many.looked_at <= 90, "five of each address: {many:?}");
    assert!(many.growth_bytes <= GROWTH_BYTES_MAX, "the service grew by {} bytes", many.growth_bytes);
    assert_eq!(known.expect("who is known gets in").status, 200);
    assert_eq!(new.expect("who is new gets in meanwhile").status, 200);
    // Now the name is locked, but not for the known device.
    flood(&door, FLOOD, 200, 50).await.expect("every attempt is answered");
    let reply = door.log_in(5, &door.password, Some(&device)).await.expect("a reply");
    assert_eq!(reply.status, 200, "{reply:?}");
}
