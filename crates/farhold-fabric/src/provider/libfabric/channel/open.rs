//! How a channel is opened, and what its provider turns out to be capable of.

use super::kept::{self, NEVER_CLOSED, remove_at_end};
use super::providers::provider_exists;
use super::raw::{Arena, Raw};
use super::shim::{Options, RawTraits, failure, farhold_open, reason, text_of};
use super::{Channel, FRAME_BYTES, Open, Size, Traits};
use crate::error::FabricError;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

/// See [`Traits::stops_writes`].
const STOP_WRITES: [&str; 2] = ["shm", "verbs"];

impl Channel {
    /// Opens a channel of a provider, bound to a local address if the provider has local addresses.
    pub fn open(provider: &str, address: Option<&str>, size: Size, wants_wait: bool) -> Result<Self, FabricError> {
        if provider == NEVER_CLOSED
            && let Some(open) = kept::take(size)
        {
            return Ok(Self::of(open));
        }
        if provider.is_empty() {
            return Err(FabricError::unfit_provider(provider, "there is none of this name"));
        }
        let c_string = |text: &str| {
            CString::new(text).map_err(|_| FabricError::unfit_provider(provider, "there is none of this name"))
        };
        let (name, local) = (c_string(provider)?, address.map(c_string).transpose()?);
        let arena = Arena::new(FRAME_BYTES * (size.rx + size.tx) as usize)?;
        let options = Options {
            provider: name.as_ptr(),
            address: local.as_ref().map_or(std::ptr::null(), |local| local.as_ptr()),
            arena: arena.base.as_ptr(),
            frame_bytes: FRAME_BYTES as u64,
            rx: size.rx,
            tx: size.tx,
            rma: size.bulk,
            wants_rma: 1,
            wants_wait: u32::from(wants_wait),
        };
        let (mut channel, mut failed) = (std::ptr::null_mut(), c"open".as_ptr());
        // SAFETY: all-zero bytes are a valid `RawTraits`.
        let mut traits: RawTraits = unsafe { std::mem::zeroed() };
        // SAFETY: all pointers are valid through the call; the arena outlives the channel, in `Raw`.
        let done = unsafe { farhold_open(&raw const options, &raw mut channel, &raw mut traits, &raw mut failed) };
        if done < 0 {
            if done == -libc::ENODATA {
                return Err(if provider_exists(&name) {
                    FabricError::unfit_provider(
                        provider,
                        "it has no reliable datagrams with messages in order (FI_EP_RDM, FI_MSG, FI_ORDER_SAS)"
                            .to_owned(),
                    )
                } else {
                    FabricError::unfit_provider(provider, "there is none of this name")
                });
            }
            // SAFETY: a constant string of the shim.
            let call = unsafe { CStr::from_ptr(failed) }.to_string_lossy();
            let call = call.split('(').next().unwrap_or_default().to_owned();
            return Err(failure(provider, &call, &reason(done.into())));
        }
        let raw = Arc::new(Raw { channel: NonNull::new(channel).expect("opened"), arena });
        let full_name = text_of(&traits.provider);
        let channel = Self::of(Open {
            size,
            traits: Traits {
                stops_writes: STOP_WRITES.iter().any(|name| full_name.split(';').next() == Some(name)),
                provider: full_name,
                has_rma: traits.has_rma != 0,
                has_wait: traits.has_wait != 0,
                wants_local_registration: traits.wants_local_mr != 0,
                transfer_bytes_max: traits.max_msg_size,
            },
            free_tx: RefCell::new((size.rx..size.rx + size.tx).rev().collect()),
            free_bulk: RefCell::new((size.rx + size.tx..size.rx + size.tx + size.bulk).rev().collect()),
            sending: Cell::new(0),
            tags: RefCell::new(vec![None; size.tx as usize]),
            unposted: RefCell::new((0..size.rx).collect()),
            peers: RefCell::default(),
            forgotten: RefCell::default(),
            raw,
        });
        if channel.is_never_closed() {
            remove_at_end(&channel.name()?);
        }
        channel.post_receives();
        if channel.open.unposted.borrow().len() == size.rx as usize {
            return Err(FabricError::unfit_provider(provider, "it takes no buffers to receive into"));
        }
        Ok(channel)
    }

    fn of(open: Open) -> Self {
        Self { open, _not_sync: PhantomData }
    }
}
