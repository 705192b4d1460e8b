//! Reads whether an endpoint serves a frontend now, and whether new connections get it, for the socket
//! terminator, which acts later.

use std::net::SocketAddr;
use std::path::Path;

use super::encode::{V4, V6};
use super::error::{OpenError, StoreError};
use super::family::FamilyMaps;
use topo_lb_core::cluster::{Family, Frontend};

/// The pinned maps.
pub struct Members {
    v4: FamilyMaps<V4>,
    v6: FamilyMaps<V6>,
}

impl Members {
    /// Opens the maps.
    ///
    /// # Errors
    /// They do not exist, or have another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self { v4: FamilyMaps::open(pin_dir)?, v6: FamilyMaps::open(pin_dir)? })
    }

    /// Whether connections to a frontend have an endpoint; `false` if every read overlapped with a write.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn has_endpoints(&self, frontend: &Frontend) -> Result<bool, StoreError> {
        match frontend.family() {
            Family::V4 => self.v4.has_endpoints(frontend),
            Family::V6 => self.v6.has_endpoints(frontend),
        }
    }

    /// Whether new connections to a frontend have endpoints, and never this one; `false` if every read overlapped
    /// with a write.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn avoids(&self, frontend: &Frontend, endpoint: SocketAddr) -> Result<bool, StoreError> {
        match frontend.family() {
            Family::V4 => self.v4.avoids(frontend, endpoint),
            Family::V6 => self.v6.avoids(frontend, endpoint),
        }
    }

    /// Whether an endpoint is a member of a frontend's Service; `true` if every read overlapped
    /// with a write. Only some Services have listed members.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn serves(&self, frontend: &Frontend, endpoint: SocketAddr) -> Result<bool, StoreError> {
        match frontend.family() {
            Family::V4 => self.v4.serves(frontend, endpoint),
            Family::V6 => self.v6.serves(frontend, endpoint),
        }
    }
}
