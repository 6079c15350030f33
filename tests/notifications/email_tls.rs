//! E-mail to a server with TLS: neither a password nor a mail is sent before the certificate of the
//! server has been verified.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, eventually};
use crate::notifications::delivery::worker;
use crate::notifications::events::subscribe;
use crate::notifications::tls::Certificates;

/// The user `mill` with the password `secret word`, as in RFC 4616.
const LOGIN: &str = "AUTH PLAIN AG1pbGwAc2VjcmV0IHdvcmQ=";

/// When the server speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Encryption {
    /// After STARTTLS (RFC 3207).
    StartTls,
    /// From the beginning (RFC 8314).
    Immediate,
    /// Never.
    Absent,
}

/// A mail server that requires a login after TLS, and keeps what clients send, with the prefix `tls> `
/// or `plain> `.
struct TlsMailServer {
    port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl TlsMailServer {
    async fn start(acceptor: TlsAcceptor, encryption: Encryption) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let it = Self { port, lines: Arc::clone(&lines) };
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, lines) = (acceptor.clone(), Arc::clone(&lines));
                tokio::spawn(async move {
                    if encryption == Encryption::Immediate {
                        let stream = acceptor.accept(stream).await.ok()?;
                        return Session { lines, encryption, tls: true }.serve(stream, true).await;
                    }
                    let plain = Session { lines: Arc::clone(&lines), encryption, tls: false };
                    let stream = plain.serve(stream, true).await?;
                    let stream = acceptor.accept(stream).await.ok()?;
                    Session { lines, encryption, tls: true }.serve(stream, false).await;
                    None
                });
            }
        });
        it
    }

    /// Returns the commands and the lines of mails.
    fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    fn count(&self, prefix: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(prefix)).count()
    }

    /// Returns the configuration of a destination for this server.
    fn destination(&self, name: &str, tls: &str, ca: Option<&str>, password: &str) -> String {
        let ca = ca.map(|path| format!("ca_file = \"{path}\"\n")).unwrap_or_default();
        format!(
            "[destinations.{name}]\nkind = \"email\"\nhost = \"localhost\"\nport = {}\ntls = \"{tls}\"\n\
             username = \"mill\"\npassword_file = \"{password}\"\nfrom = \"mill@example.com\"\n\
             to = [\"ann@example.com\"]\nallow_private = true\n{ca}",
            self.port
        )
    }
}

/// A part of a session, before or after STARTTLS.
struct Session {
    lines: Arc<Mutex<Vec<String>>>,
    encryption: Encryption,
    tls: bool,
}

impl Session {
    /// Speaks the server's part of SMTP. Returns the stream after STARTTLS, and `None` at the end.
    async fn serve<S>(&self, stream: S, greet: bool) -> Option<S>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut stream = BufReader::new(stream);
        if greet {
            stream.write_all(b"220 test\r\n").await.ok()?;
        }
        let (mut in_data, mut known) = (false, false);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            let prefix = if self.tls { "tls" } else { "plain" };
            self.lines.lock().push(format!("{prefix}> {line}"));
            let offers_tls = !self.tls && self.encryption == Encryption::StartTls;
            let answer = match line {
                "." if in_data => {
                    in_data = false;
                    "250 queued"
                }
                _ if in_data => continue,
                "STARTTLS" if offers_tls => {
                    stream.write_all(b"220 go on\r\n").await.ok()?;
                    return Some(stream.into_inner());
                }
                "QUIT" => "221 bye",
                LOGIN if self.tls => {
                    known = true;
                    "235 welcome"
                }
                _ if line.starts_with("AUTH") => "535 5.7.8 wrong password",
                _ if line.starts_with("EHLO") && offers_tls => "250-test\r\n250 STARTTLS",
                _ if line.starts_with("EHLO") => "250-test\r\n250 AUTH PLAIN",
                _ if !known => "530 5.7.0 login required",
                "DATA" => {
                    in_data = true;
                    "354 go on"
                }
                _ => "250 ok",
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await.ok()?;
        }
    }
}

/// Sends a notification to each destination, and returns the errors by the name of the destination.
async fn errors(database: &Database, names: &[&str]) -> Vec<Option<String>> {
    for name in names {
        subscribe(database, name, json!({"events": ["task_failed"], "destination": name})).await;
    }
    database.execute("SELECT mill.notify('task_failed', '{\"task_id\": 1}')").await;
    let attempted = "SELECT bool_and(last_error IS NOT NULL OR last_sent_at IS NOT NULL) FROM mill.subscription_state";
    eventually("all were attempted", async || {
        database.value::<Option<bool>>(attempted).await == Some(true)
    })
    .await;
    database
        .value("SELECT array_agg(s.last_error ORDER BY s.name) FROM mill.subscription_status s")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_is_sent_with_a_login_after_starttls_or_in_a_tls_session() {
    let database = Database::new().await;
    let certificates = Certificates::new("mail");
    let server = async |encryption| TlsMailServer::start(certificates.acceptor(), encryption).await;
    let (start_tls, immediate) =
        (server(Encryption::StartTls).await, server(Encryption::Immediate).await);
    let (password, ca) = (TemporaryFile::new("secret word\n"), certificates.path("ca.crt"));
    let config = TemporaryFile::new(
        &[
            immediate.destination("immediate", "tls", Some(&ca), password.path()),
            start_tls.destination("start_tls", "starttls", Some(&ca), password.path()),
        ]
        .concat(),
    );
    let _worker = worker(&database, &config);
    assert_eq!(errors(&database, &["immediate", "start_tls"]).await, [None, None]);
    for server in [&start_tls, &immediate] {
        let lines = server.lines();
        assert_eq!(server.count(&format!("tls> {LOGIN}")), 1, "{lines:?}");
        assert_eq!(server.count("tls> MAIL FROM:<mill@example.com>"), 1, "{lines:?}");
        assert_eq!(server.count("tls> Subject: [pgmill] task 1"), 1, "{lines:?}");
    }
    let plain = start_tls.lines();
    let plain: Vec<&str> = plain.iter().filter_map(|line| line.strip_prefix("plain> ")).collect();
    assert!(plain.len() == 2 && plain[0].starts_with("EHLO"), "{plain:?}");
    assert_eq!(plain[1], "STARTTLS");
    assert_eq!(immediate.count("plain> "), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_or_with_another_certificate_gets_neither_password_nor_mail() {
    let database = Database::new().await;
    let certificates = Certificates::new("mail-refused");
    let server = async |encryption| TlsMailServer::start(certificates.acceptor(), encryption).await;
    let (stripped, untrusted, wrong) = (
        server(Encryption::Absent).await,
        server(Encryption::StartTls).await,
        server(Encryption::StartTls).await,
    );
    let (password, other) = (TemporaryFile::new("secret word"), TemporaryFile::new("password"));
    let ca = certificates.path("ca.crt");
    let config = TemporaryFile::new(
        &[
            stripped.destination("stripped", "starttls", Some(&ca), password.path()),
            untrusted.destination("untrusted", "starttls", None, password.path()),
            wrong.destination("wrong", "starttls", Some(&ca), other.path()),
        ]
        .concat(),
    );
    let _worker = worker(&database, &config);
    let errors = errors(&database, &["stripped", "untrusted", "wrong"]).await;
    let contains = |n: usize, text: &str| errors[n].as_deref().is_some_and(|it| it.contains(text));
    assert!(contains(0, "STARTTLS"), "{errors:?}");
    assert!(contains(1, "invalid peer certificate"), "{errors:?}");
    assert!(contains(2, "5.7.8 wrong password"), "{errors:?}");
    for server in [&stripped, &untrusted] {
        let lines = server.lines();
        let sent = ["AUTH", "MAIL"].map(|it| lines.iter().any(|line| line.contains(it)));
        assert_eq!(sent, [false; 2], "{lines:?}");
    }
    assert_eq!(wrong.count("tls> MAIL"), 0, "{:?}", wrong.lines());
    // An operator can correct each of these, so the mails are tried again.
    let waiting = "SELECT count(*) FROM mill.visible_notifications WHERE state = 'pending'";
    assert_eq!(database.value::<i64>(waiting).await, 3);
}
