//! Is it a client that may come in?

use tenure_tls::{ClientAuth, ClientTls, ServerTls};

use crate::stand::{Certs, Server, call_worker};

fn asking(certs: &Certs, client_auth: ClientAuth) -> ServerTls {
    ServerTls { client_ca_file: Some(certs.file("ca.crt")), client_auth, ..certs.worker() }
}

#[tokio::test]
async fn client_certificates_are_ignored_wanted_or_demanded() {
    let (certs, others) = (Certs::new(), Certs::new());
    let stranger = || ClientTls { ca_file: Some(certs.file("ca.crt")), ..others.control_plane() };
    let off = Server::start(certs.worker()).await;
    let optional = Server::start(asking(&certs, ClientAuth::Optional)).await;
    let required = Server::start(asking(&certs, ClientAuth::Required)).await;
    let table = [
        ("off, none", &off, certs.trusting(), true, false),
        ("off, good", &off, certs.control_plane(), true, false),
        ("off, wrong CA", &off, stranger(), true, false),
        ("optional, none", &optional, certs.trusting(), true, false),
        ("optional, good", &optional, certs.control_plane(), true, true),
        ("required, none", &required, certs.trusting(), false, false),
        ("required, good", &required, certs.control_plane(), true, true),
    ];
    for (case, server, client, accepted, named) in table {
        server.seen.clients.lock().unwrap().clear();
        let result = call_worker(client, server).await;
        assert_eq!(result.is_ok(), accepted, "{case}: {:?}", result.err());
        let clients = server.seen.clients.lock().unwrap();
        assert_eq!(clients.len(), usize::from(accepted), "{case}");
        if named {
            let names = clients[0].clone().unwrap();
            assert_eq!(names.dns, ["control-plane"], "{case}");
            assert_eq!(names.uris, ["tenure://control-plane"], "{case}");
            assert!(names.common_name.unwrap().contains("throwaway"), "{case}");
        } else {
            assert!(clients.iter().all(Option::is_none), "{case}");
        }
    }
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_even_where_none_is_needed() {
    let (certs, others) = (Certs::new(), Certs::new());
    for client_auth in [ClientAuth::Optional, ClientAuth::Required] {
        let server = Server::start(asking(&certs, client_auth)).await;
        let stranger = ClientTls { ca_file: Some(certs.file("ca.crt")), ..others.control_plane() };
        assert!(call_worker(stranger, &server).await.is_err(), "{client_auth:?}");
        assert_eq!(server.bytes(), 0, "{client_auth:?}");
    }
}

#[tokio::test]
async fn only_listed_clients_come_in_where_there_is_a_list() {
    let certs = Certs::new();
    for (allowed, accepted) in [
        (vec!["control-plane"], true),
        (vec!["tenure://control-plane"], true),
        (vec!["someone-else", "control-plane"], true),
        (vec!["someone-else"], false),
        (vec!["tenure://worker/w-1"], false),
    ] {
        let allowed_client_names: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let tls = ServerTls { allowed_client_names, ..asking(&certs, ClientAuth::Required) };
        let server = Server::start(tls).await;
        let result = call_worker(certs.control_plane(), &server).await;
        assert_eq!(result.is_ok(), accepted, "{allowed:?}: {:?}", result.err());
        assert_eq!(server.bytes() > 0, accepted, "{allowed:?}");
    }
}
