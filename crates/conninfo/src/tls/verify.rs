//! Verifies the server's certificate according to `sslmode`.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::time::Time;

/// The verifier of server certificates.
///
/// The signature of the handshake is checked in every mode. Otherwise anyone could present the real
/// server's certificate, and channel binding would prove nothing.
#[derive(Debug)]
pub(crate) struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None` for `prefer`, for `allow`, and for `require` without root certificates, which accept
    /// any certificate.
    trusted: Option<Trusted>,
}

impl Verifier {
    pub(crate) fn any_certificate(provider: Arc<CryptoProvider>) -> Self {
        Self { provider, trusted: None }
    }

    pub(crate) fn trusting(provider: Arc<CryptoProvider>, trusted: Trusted) -> Self {
        Self { provider, trusted: Some(trusted) }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let intermediates = [intermediates, &trusted.helping].concat();
        let chain = trusted.chain(&self.provider, now)?;
        let verified =
            chain.verify_server_cert(certificate, &intermediates, name, ocsp_response, now);
        match verified {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !trusted.check_name => Ok(ServerCertVerified::assertion()),
            Err(error) if trusted.pinned(certificate, &error) => {
                if trusted.check_name {
                    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_tls13_signature(message, certificate, signed, algorithms);
        let any_key = if self.trusted.is_none() { public_key(certificate) } else { None };
        match (verified, any_key) {
            (Err(Error::InvalidCertificate(CertificateError::Other(_))), Some(key)) => {
                verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
            }
            (verified, _) => verified,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the public key of an X.509 version 1 certificate, which `openssl x509 -req` makes by
/// default. webpki reads version 3 only, so without this function `prefer` could not use TLS with
/// such a server.
fn public_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let key = certificate.tbs_certificate.subject_public_key_info.to_der().ok()?;
    Some(SubjectPublicKeyInfoDer::from(key))
}

/// The rules of `verify-ca` and `verify-full`. The certificate must chain to a trusted root
/// and, with `check_name`, be issued for the host.
///
/// libpq (OpenSSL) has stricter rules for roots than webpki: a root must be its own issuer, and its
/// own dates must be valid. Other certificates in the file only help to build a chain to a root.
#[derive(Debug)]
pub(crate) struct Trusted {
    roots: Vec<Root>,
    helping: Vec<CertificateDer<'static>>,
    check_name: bool,
}

/// A certificate that is its own issuer. Times are in seconds since 1970.
#[derive(Debug)]
struct Root {
    certificate: CertificateDer<'static>,
    from: Duration,
    until: Duration,
}

impl Trusted {
    pub(crate) fn new(
        certificates: Vec<CertificateDer<'static>>,
        check_name: bool,
    ) -> Result<Self, String> {
        let (mut roots, mut helping) = (Vec::new(), Vec::new());
        for certificate in certificates {
            let Ok(read) = Certificate::from_der(&certificate) else { continue };
            let read = read.tbs_certificate;
            if read.issuer == read.subject {
                let [from, until] = [read.validity.not_before, read.validity.not_after]
                    .map(|time: Time| time.to_unix_duration());
                roots.push(Root { certificate, from, until });
            } else {
                helping.push(certificate);
            }
        }
        if roots.is_empty() && helping.is_empty() {
            return Err("does not contain a usable certificate".to_owned());
        }
        Ok(Self { roots, helping, check_name })
    }

    /// Returns a chain builder with the roots whose dates are valid now.
    fn chain(
        &self,
        provider: &Arc<CryptoProvider>,
        now: UnixTime,
    ) -> Result<Arc<WebPkiServerVerifier>, Error> {
        let now = Duration::from_secs(now.as_secs());
        let valid = |root: &&Root| (root.from..=root.until).contains(&now);
        let mut store = RootCertStore::empty();
        let valid = self.roots.iter().filter(valid).map(|root| root.certificate.clone());
        let (usable, _) = store.add_parsable_certificates(valid);
        if usable == 0 {
            let expired = !self.roots.is_empty();
            let reason =
                if expired { CertificateError::Expired } else { CertificateError::UnknownIssuer };
            return Err(Error::InvalidCertificate(reason));
        }
        WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))
    }

    /// Returns whether the certificate is a self-signed server certificate that is itself in the
    /// root file. `openssl req -x509` makes such certificates, and libpq accepts them. The chain
    /// builder refuses them as "CA used as end entity". It does so right after it has checked the
    /// dates, so it remains to compare the certificate with the root file.
    fn pinned(&self, certificate: &CertificateDer<'_>, error: &Error) -> bool {
        matches!(error, Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string() == "CaUsedAsEndEntity")
            && self.roots.iter().any(|root| root.certificate == *certificate)
    }
}
