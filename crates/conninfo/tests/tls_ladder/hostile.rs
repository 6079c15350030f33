//! Servers with invalid certificates or old protocols, and attackers between client and server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::cluster::{Cluster, Outcome};
use crate::product;

const ROOTS: [&str; 2] = ["", "sslrootcert={dir}/ca.crt"];

/// Creates server certificates of the private CA, each with one fault, and a chain of certificates.
fn make_wrong_certificates(directory: &Path) {
    let script = "set -e; cd \"$0\"; umask 077
printf '[ca]\\ndefault_ca=d\\n[d]\\ndatabase=index\\nnew_certs_dir=.\\ndefault_md=sha256\\npolicy=p\nserial=serial
x509_extensions=e\\nunique_subject=no\\n[p]\\ncommonName=supplied\\n[e]\\nsubjectAltName=DNS:localhost
basicConstraints=CA:FALSE\\n[r]\\nbasicConstraints=critical,CA:TRUE\\n' > ca.cnf
: > index; echo 01 > serial
sign() { openssl ca -batch -notext -config ca.cnf -cert ca.crt -keyfile ca.key -in server.csr \
  -startdate $2 -enddate $3 -out $1.crt 2>/dev/null; }
sign expired 20200101000000Z 20210101000000Z
sign early 20900101000000Z 20910101000000Z
req='openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
for name in elsewhere middle leaf; do
  case $name in
    elsewhere) cn=elsewhere; ext='subjectAltName=DNS:elsewhere'; ca=ca;;
    middle) cn=middle; ext='basicConstraints=critical,CA:TRUE'; ca=ca;;
    leaf) cn=localhost; ext='subjectAltName=DNS:localhost'; ca=middle;;
  esac
  $req -new -keyout $name.key -out $name.csr -subj /CN=$cn 2>/dev/null
  echo $ext > $name.ext
  openssl x509 -req -days 9 -in $name.csr -CA $ca.crt -CAkey $ca.key -CAcreateserial \
    -extfile $name.ext -out $name.crt 2>/dev/null
done
cat leaf.crt middle.crt > chain.crt
cat middle.crt ca.crt > both.crt
openssl ca -batch -notext -selfsign -config ca.cnf -keyfile ca.key -in <(openssl x509 -x509toreq \
  -in ca.crt -signkey ca.key 2>/dev/null) -extensions r -startdate 20200101000000Z \
  -enddate 20210101000000Z -out old.crt 2>/dev/null
cat old.crt ca.crt > old-new.crt
for name in expired early; do cp server.key $name.key; done
cp leaf.key chain.key
openssl ca -config ca.cnf -cert ca.crt -keyfile ca.key -gencrl -crldays 9 -out none.crl 2>/dev/null
chmod 644 *.crt *.crl
if [ \"$(id -u)\" = 0 ]; then for n in expired early elsewhere leaf chain; do
  chown postgres $n.crt $n.key; done; fi
";
    let output = Command::new("bash").args(["-c", script]).arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Cluster {
    fn serve_as(&self, name: &str) {
        let own = self.path(name);
        self.restart(&format!("ssl=on -c ssl_cert_file={own}.crt -c ssl_key_file={own}.key"));
    }
}

#[test]
fn a_wrong_certificate_ends_as_in_psql() {
    let Some(cluster) = Cluster::start("wrong") else { return };
    make_wrong_certificates(Path::new(&cluster.path("")));
    let strict = "host=localhost user=any sslmode=verify-full sslrootcert={dir}/ca.crt";
    for (name, verified) in [
        ("expired", Outcome::Outside),
        ("early", Outcome::Outside),
        ("elsewhere", Outcome::Outside),
        // Without the intermediate certificate there is no path to the root.
        ("leaf", Outcome::Outside),
        ("chain", Outcome::WithTls),
    ] {
        cluster.serve_as(name);
        cluster.compare(name, &product(&["any"], &ROOTS));
        assert_eq!(cluster.ours(strict, "home").0, verified, "{name}");
    }
    let rows = |root: &str| product(&["any"], &[root]);
    cluster.compare("a chain, both in the file", &rows("sslrootcert={dir}/both.crt"));
    cluster.compare("a chain, its middle in the file", &rows("sslrootcert={dir}/middle.crt"));
    cluster.compare("a chain, a root that has expired", &rows("sslrootcert={dir}/old.crt"));
    cluster.compare("a chain, that root and a good one", &rows("sslrootcert={dir}/old-new.crt"));
    cluster.serve_as("leaf");
    cluster.compare("a leaf, both in the file", &rows("sslrootcert={dir}/both.crt"));
}

#[test]
fn an_old_protocol_is_refused() {
    let Some(cluster) = Cluster::start("old") else { return };
    cluster
        .restart("ssl_min_protocol_version=TLSv1.1 -c ssl_max_protocol_version=TLSv1.1 -c ssl=on");
    let counts = cluster.compare("a server of TLS 1.1", &product(&["any", "secure"], &ROOTS));
    assert_eq!(counts[Outcome::WithTls as usize], 0);
}

/// SECURITY.md documents these differences.
#[test]
fn cases_that_differ_from_psql_are_refused_here() {
    let Some(cluster) = Cluster::start("differs") else { return };
    make_wrong_certificates(Path::new(&cluster.path("")));
    let revocations = "host=localhost user=any sslmode=verify-full sslrootcert={dir}/ca.crt \
                       sslcrl={dir}/none.crl";
    assert_eq!(cluster.psql(revocations, "home").0, Outcome::WithTls);
    let (ours, error) = cluster.ours(revocations, "home");
    assert_eq!(ours, Outcome::Outside);
    assert!(error.contains("sslcrl"), "{error}");
}

const BINDINGS: [&str; 3] = ["disable", "prefer", "require"];

fn with_password(modes: &[&str], port: Option<u16>) -> Vec<(String, &'static str)> {
    let port = port.map(|port| format!("port={port} ")).unwrap_or_default();
    let row = |mode: &&str, binding: &str| {
        let password = "user=password password='open sesame'";
        let row =
            format!("{port}host=localhost {password} sslmode={mode} channel_binding={binding}");
        (row, "home")
    };
    modes.iter().flat_map(|mode| BINDINGS.map(|binding| row(mode, binding))).collect()
}

#[test]
fn channel_binding_ends_as_in_psql() {
    let Some(cluster) = Cluster::start("binding") else { return };
    let rows = with_password(&["disable", "allow", "prefer", "require"], None);
    let counts = cluster.compare("a server with TLS", &rows);
    assert!(counts.iter().all(|times| *times > 1), "{counts:?}");
    cluster.restart("ssl=off");
    cluster.compare("a server without TLS", &rows);
}

#[test]
fn channel_binding_detects_a_man_in_the_middle() {
    let Some(cluster) = Cluster::start("between") else { return };
    for (upstream, bound) in
        [(Upstream::Tls, Outcome::Outside), (Upstream::Plain, Outcome::WithTls)]
    {
        let between = Between::start(&cluster, upstream);
        let rows = with_password(&["prefer", "require"], Some(between.port));
        // The client always uses TLS, and the server sees TLS or none. Both programs report what
        // the server sees.
        cluster.compare(&format!("man in the middle, {upstream:?}"), &rows);
        let required = &rows[5];
        assert!(required.0.ends_with("sslmode=require channel_binding=require"));
        assert_eq!(cluster.ours(&required.0, "home").0, Outcome::Outside);
        // With `require`, the certificate alone does not reveal the attacker, but channel binding
        // does.
        let (unbound, preferred) = (&rows[3], &rows[4]);
        assert_ne!(cluster.ours(&unbound.0, "home").0, Outcome::Outside);
        let inside = cluster.ours(&preferred.0, "home").0 != Outcome::Outside;
        assert_eq!(inside, bound != Outcome::Outside, "{upstream:?}");
        let verified = format!("port={} host=localhost user=any sslmode=verify-full", between.port);
        let verified = format!("{verified} sslrootcert={{dir}}/ca.crt");
        cluster.compare("verified", &[(verified.clone(), "home")]);
        assert_eq!(cluster.ours(&verified, "home").0, Outcome::Outside);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upstream {
    Tls,
    /// Connects to the server without TLS, so neither side negotiates channel binding.
    Plain,
}

/// A man in the middle: accepts TLS with its own certificate and forwards the traffic.
struct Between {
    port: u16,
}

impl Between {
    /// Runs until the test process ends.
    fn start(cluster: &Cluster, upstream: Upstream) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(own_certificate(cluster)));
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.port.number()));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let mut connections = tokio::task::JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    let acceptor = acceptor.clone();
                    connections.spawn(async move {
                        // A client that rejects the certificate disconnects here.
                        let _ = pass_on(client, acceptor, server, upstream).await;
                    });
                }
            });
        });
        Self { port }
    }
}

/// The TLS request: its length, and a special version number.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];

async fn pass_on(
    mut client: TcpStream,
    acceptor: TlsAcceptor,
    server: SocketAddr,
    upstream: Upstream,
) -> std::io::Result<()> {
    let mut asked = [0; 8];
    client.read_exact(&mut asked).await?;
    if asked != REQUEST {
        return Ok(());
    }
    client.write_all(b"S").await?;
    let mut client = acceptor.accept(client).await?;
    let mut server = TcpStream::connect(server).await?;
    if upstream == Upstream::Plain {
        return copy_bidirectional(&mut client, &mut server).await.map(drop);
    }
    server.write_all(&REQUEST).await?;
    let mut answer = [0];
    server.read_exact(&mut answer).await?;
    let trusting = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut server = TlsConnector::from(Arc::new(trusting)).connect(name, server).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

fn own_certificate(cluster: &Cluster) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(cluster.path("stranger.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(cluster.path("stranger.key")).unwrap();
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

/// Accepts any certificate.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
