//! Headers that name users: only the proxy may send them, once and under their exact name.

use super::{ATTACKER, HONEST, raw, status};
use crate::harness::Database;
use crate::harness::console::{Console, TokenFile};

const ACCESS: &str = r#"
[proxy]
addresses = ["127.0.0.3"]
user_header = "X-Forwarded-User"
groups_header = "X-Forwarded-Groups"

[[user]]
name = "ann"

[[user]]
group = "dba"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn only_the_proxy_names_a_user_and_only_once() {
    let database = Database::new().await;
    let file = TokenFile::new(ACCESS);
    let console = Console::start(&database, &["--access-file", file.path()]).await;
    let ask = async |from: &str, headers: &str| {
        let request = format!(
            "GET /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        );
        let answer = raw(from, &console.address, request.as_bytes()).await;
        (status(&answer), answer)
    };
    for (headers, expected) in [
        ("X-Forwarded-User: ann\r\n", 200),
        ("x-forwarded-user: ann\r\n", 200),
        ("X-Forwarded-User: eve\r\nX-Forwarded-Groups: x, dba\r\n", 200),
        // The proxy added its header to that of its client.
        ("X-Forwarded-User: ann\r\nX-Forwarded-User: eve\r\n", 403),
        ("X-Forwarded-User: eve\r\nX-Forwarded-User: ann\r\n", 403),
        ("X-Forwarded-User: eve\r\nX-Forwarded-Groups: x\r\nX-Forwarded-Groups: dba\r\n", 403),
        ("X-Forwarded-User: ann\r\nX-Forwarded-Groups: x\r\nx-forwarded-groups: y\r\n", 403),
        ("X-Forwarded-User: ann, eve\r\n", 403),
        ("X-Forwarded-User: eve\r\n", 403),
        // A proxy that joins headers of the same name.
        ("X-Forwarded-User: eve, ann\r\n", 403),
        // Names that some servers treat as the same.
        ("X_Forwarded_User: ann\r\n", 401),
        ("X-Forwarded_User: ann\r\n", 401),
        ("X-Forwarded-User: eve\r\nX_Forwarded_Groups: dba\r\n", 403),
        ("Remote-User: ann\r\n", 401),
        ("X-Forwarded-User:\r\n", 401),
        ("X-Forwarded-Groups: dba\r\n", 401),
        // The client made the proxy remove the header that it had set.
        ("Connection: X-Forwarded-User\r\n", 401),
        ("Connection: close, X-Forwarded-User\r\n", 401),
        ("X-Forwarded-User : ann\r\n", 400),
        ("X-Forwarded-User: ann\r\n eve\r\n", 400),
        ("X-Forwarded-User: \u{e4}nn\r\n", 403),
    ] {
        let (status, answer) = ask(HONEST, headers).await;
        assert_eq!(status, Some(expected), "{headers:?}: {answer}");
    }
    for headers in [
        "X-Forwarded-User: ann\r\n",
        "X-Forwarded-User: ann\r\nX-Forwarded-For: 127.0.0.3\r\n",
        "X-Forwarded-User: ann\r\nForwarded: for=127.0.0.3\r\n",
        "X-Forwarded-User: ann\r\nX-Real-IP: 127.0.0.3\r\n",
    ] {
        let (status, answer) = ask(ATTACKER, headers).await;
        assert_eq!(status, Some(401), "{headers:?}: {answer}");
    }
    // The trailer of a body is not a header.
    let trailer = "POST /api/v1/queues/pause HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: X-Forwarded-User\r\n\r\n\
        0\r\nX-Forwarded-User: ann\r\n\r\n";
    let answer = raw(HONEST, &console.address, trailer.as_bytes()).await;
    assert_eq!(status(&answer), Some(401), "{answer}");
}
