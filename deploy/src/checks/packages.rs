//! Checks of what is installed: Debian package, man pages, systemd unit, container image.

pub(super) mod containers;
pub(super) mod debian;
pub(super) mod image;
pub(super) mod man_pages;
pub(super) mod systemd;
