//! The TLS rules of a target, and the connector that is built from them.
//!
//! Certificate files are read again for each connection, as in libpq, so that a renewed certificate
//! needs no restart.

mod verify;

use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::parse::environment::Environment;
use crate::parse::settings::Settings;
use crate::secret::shown;
use crate::tls::verify::{Trusted, Verifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, SupportedProtocolVersion, version};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_postgres::config::SslNegotiation;
use tokio_postgres_rustls::MakeRustlsConnect;

/// libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const MODES: [(&str, SslMode); 6] = [
    ("prefer", SslMode::Prefer),
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

/// Source of the trusted root certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Roots {
    /// The operating system's store.
    System,
    /// A file, which may be missing unless the mode verifies certificates.
    File(PathBuf),
    /// No file is given, and there is no home directory to search.
    None,
}

/// All settings that affect TLS.
#[derive(Debug, Clone)]
pub(crate) struct TlsRules {
    pub(crate) mode: SslMode,
    pub(crate) negotiation: SslNegotiation,
    roots: Roots,
    /// Certificate and key of the client. They are used if the certificate exists.
    certificate: Option<(PathBuf, PathBuf)>,
    versions: Vec<&'static SupportedProtocolVersion>,
    name_indication: bool,
}

impl TlsRules {
    pub(crate) fn resolve(
        settings: &Settings,
        env: &Environment,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConnectError> {
        let roots = match settings.filled("sslrootcert") {
            Some("system") => Roots::System,
            Some(path) => Roots::File(PathBuf::from(path)),
            None => env.below_home(".postgresql/root.crt").map_or(Roots::None, Roots::File),
        };
        let mode = match (settings.get("sslmode"), &roots) {
            (None, Roots::System) => SslMode::VerifyFull,
            _ => settings.choice("sslmode", &MODES)?,
        };
        if roots == Roots::System && mode != SslMode::VerifyFull {
            return Err(settings.invalid(
                "sslmode",
                "weak modes may not be used with sslrootcert=system (use verify-full)",
            ));
        }
        let negotiation = settings.choice(
            "sslnegotiation",
            &[("postgres", SslNegotiation::Postgres), ("direct", SslNegotiation::Direct)],
        )?;
        if negotiation == SslNegotiation::Direct
            && matches!(mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer)
        {
            return Err(settings.invalid(
                "sslnegotiation",
                "direct may not be used with a weak sslmode (use require, verify-ca or verify-full)",
            ));
        }
        if mode != SslMode::Disable {
            refuse_default_crl(env)?;
        }
        Ok(Self {
            mode,
            negotiation,
            roots,
            certificate: own_certificate(settings, env, warnings)?,
            versions: versions(settings)?,
            name_indication: settings.filled("sslsni") != Some("0"),
        })
    }

    /// Checks that each host has a name, which `verify-full` requires.
    pub(crate) fn accept(&self, endpoints: &[Endpoint]) -> Result<(), ConnectError> {
        if self.mode == SslMode::VerifyFull && endpoints.iter().any(|e| e.host.is_none()) {
            return Err(ConnectError::usage_with_hint(
                "host name must be specified for a verified TLS connection",
                "set host in addition to hostaddr",
            ));
        }
        Ok(())
    }

    /// Returns the connector for attempts with TLS.
    pub(crate) fn connector(&self) -> Result<MakeRustlsConnect, ConnectError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = self.verifier(Arc::clone(&provider))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .map_err(|error| ConnectError::usage(format!("could not set up TLS: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.certificate {
            Some((certificate, key)) if certificate.exists() => builder
                .with_client_auth_cert(certificates(certificate, CERTIFICATE)?, private_key(key)?)
                .map_err(|error| file_error(KEY, key, error.to_string()))?,
            _ => builder.with_no_client_auth(),
        };
        config.enable_sni = self.name_indication;
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(MakeRustlsConnect::new(config))
    }

    /// Returns the verifier of server certificates. As in libpq, a root file that exists is used in
    /// every mode, and `verify-*` require one.
    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Verifier, ConnectError> {
        let insists = matches!(self.mode, SslMode::VerifyCa | SslMode::VerifyFull);
        let (trusted, path) = match &self.roots {
            Roots::System => (rustls_native_certs::load_native_certs().certs, Path::new("system")),
            Roots::File(path) if insists || path.exists() => (certificates(path, ROOT)?, &**path),
            Roots::None if insists => {
                return Err(ConnectError::usage_with_hint(
                    "no root certificate file for verifying the server",
                    "set sslrootcert to a file, or to system",
                ));
            }
            Roots::File(_) | Roots::None => return Ok(Verifier::any_certificate(provider)),
        };
        let check_name = self.mode == SslMode::VerifyFull;
        let trusted = Trusted::new(trusted, check_name);
        let trusted = trusted.map_err(|problem| file_error(ROOT, path, problem))?;
        Ok(Verifier::trusting(provider, trusted))
    }
}

/// Returns a connector for attempts without TLS. The types of the driver require one, but nothing
/// calls it.
pub(crate) fn idle_connector() -> Result<MakeRustlsConnect, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::usage(format!("could not set up TLS: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier::any_certificate(provider)))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

const ROOT: &str = "root certificate file";
const CERTIFICATE: &str = "certificate file";
const KEY: &str = "private key file";

/// Returns an error if the default revocation list exists, because libpq would check it and this
/// program cannot.
fn refuse_default_crl(env: &Environment) -> Result<(), ConnectError> {
    match env.below_home(".postgresql/root.crl").filter(|path| path.exists()) {
        Some(path) => Err(file_error(
            "certificate revocation list",
            &path,
            "libpq would check certificates against this list, which is not supported here; remove the list to connect".to_owned(),
        )),
        None => Ok(()),
    }
}

fn own_certificate(
    settings: &Settings,
    env: &Environment,
    warnings: &mut Vec<String>,
) -> Result<Option<(PathBuf, PathBuf)>, ConnectError> {
    if settings.get("sslcertmode") == Some("require") {
        return Err(settings.invalid("sslcertmode", "require is not supported"));
    }
    let enabled = settings.choice("sslcertmode", &[("allow", true), ("disable", false)])?;
    let certificate = settings.filled("sslcert").map(PathBuf::from);
    if let Some(missing) = certificate.as_ref().filter(|path| !path.exists()) {
        warnings.push(format!(
            "{CERTIFICATE} \"{}\" does not exist: connecting without it",
            shown(&missing.to_string_lossy())
        ));
    }
    let certificate = certificate.or_else(|| env.below_home(".postgresql/postgresql.crt"));
    let key = settings.filled("sslkey").map(PathBuf::from);
    let key = key.or_else(|| env.below_home(".postgresql/postgresql.key"));
    Ok(certificate.zip(key).filter(|_| enabled))
}

/// Returns the TLS versions to accept. TLS 1.2 is libpq's default minimum; older versions are not
/// supported.
fn versions(settings: &Settings) -> Result<Vec<&'static SupportedProtocolVersion>, ConnectError> {
    let with_12 = settings.choice(
        "ssl_min_protocol_version",
        &[("TLSv1.2", true), ("TLSv1.3", false), ("TLSv1", true), ("TLSv1.1", true), ("", true)],
    )?;
    let with_13 = settings
        .choice("ssl_max_protocol_version", &[("TLSv1.3", true), ("TLSv1.2", false), ("", true)])?;
    if !with_12 && !with_13 {
        return Err(settings.invalid("ssl_max_protocol_version", "is below the minimum"));
    }
    let both = [(with_13, &version::TLS13), (with_12, &version::TLS12)];
    Ok(both.into_iter().filter(|(with, _)| *with).map(|(_, version)| version).collect())
}

fn file_error(what: &'static str, path: &Path, problem: String) -> ConnectError {
    let path = shown(&path.to_string_lossy()).to_owned();
    ConnectError::TlsFile { what, path, problem }
}

fn certificates(
    path: &Path,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| file_error(what, path, error.to_string()))
}

/// Reads the private key. Other users must not be able to read the file; its group may, if root
/// owns it.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConnectError> {
    let metadata =
        std::fs::metadata(path).map_err(|error| file_error(KEY, path, error.to_string()))?;
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.permissions().mode() & forbidden != 0 {
        return Err(file_error(
            KEY,
            path,
            "has group or world access; permissions should be u=rw (0600) or less, or \
             u=rw,g=r (0640) or less if owned by root"
                .to_owned(),
        ));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let problem = match error {
            rustls::pki_types::pem::Error::NoItemsFound => {
                "does not contain an unencrypted private key".to_owned()
            }
            error => error.to_string(),
        };
        file_error(KEY, path, problem)
    })
}
