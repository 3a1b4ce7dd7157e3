//! Every interleaving of three hosts, a rehash, a new instance, reused ports and a lost packet.

use pando_model::door::{Door, Fault};
use stateright::{Checker, Model};

fn door(fault: Fault) -> Door {
    Door {
        fault,
        packets: 2,
        rehashes: 2,
        losses: 1,
    }
}

#[test]
fn a_packet_at_the_wrong_door_resets_no_living_connection() {
    let checker = door(Fault::None).checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker.assert_properties();
}

#[test]
fn each_fault_is_found() {
    for (fault, property) in [
        (
            Fault::FirstAnswerDecides,
            "no connection that lives is reset",
        ),
        (Fault::OneLook, "no connection that lives is reset"),
        (Fault::OneLookIfNamed, "no connection that lives is reset"),
        (Fault::PassOn, "no packet goes round"),
        (Fault::TrustTheTunnel, "no connection that lives is reset"),
    ] {
        let checker = door(fault).checker().threads(2).spawn_bfs().join();
        let found = checker.discovery(property);
        assert!(found.is_some(), "{fault:?} is not found");
        println!("{fault:?}: {:?}", found.map(|path| path.into_actions()));
    }
}
