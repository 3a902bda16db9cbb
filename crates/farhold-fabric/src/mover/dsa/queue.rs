//! A work queue of the Linux driver `idxd`: found in sysfs, opened as `/dev/dsa/wqN.M`, its portal mapped.
//!
//! Source: Linux, `Documentation/ABI/stable/sysfs-driver-dma-idxd` and `drivers/dma/idxd/cdev.c`.

use super::descriptor::Descriptor;
use super::instructions::{self, Instructions};
use super::{Queue, Submitted};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

/// How a queue takes descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// From any number of processes, by `ENQCMD`.
    Shared,
    /// From the process that opened it, by `MOVDIR64B`.
    Dedicated,
}

/// A queue that this process could use, as sysfs describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// `wqN.M`.
    pub name: String,
    pub mode: Mode,
    /// Descriptors that it holds.
    pub entries: usize,
    /// Bytes of a descriptor at most.
    pub transfer_bytes_max: usize,
    /// Whether the device may wait for missing pages.
    pub blocks_on_fault: bool,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, entries, transfer_bytes_max, .. } = self;
        let mode = if self.mode == Mode::Shared { "shared" } else { "dedicated" };
        let faults = if self.blocks_on_fault { ", waits for missing pages" } else { "" };
        write!(f, "{name} ({mode}, {entries} entries, {transfer_bytes_max} bytes a descriptor at most{faults})")
    }
}

/// A queue, or why this process cannot use it.
pub(super) type Named = (String, Result<Found, String>);

/// The queues of all DSA devices, by name; those of IAA devices are left out.
///
/// # Errors
/// Why there are none.
pub(super) fn find(devices: &Path, has: Instructions) -> Result<Vec<Named>, String> {
    let below = |folder: &Path, prefix: &str| -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort();
        Ok(names)
    };
    let found = below(devices, "dsa").map_err(|error| {
        format!("{} cannot be read ({error}): there is no device, or the driver idxd is not loaded", devices.display())
    })?;
    if found.is_empty() {
        return Err(format!("{} names no device dsa*", devices.display()));
    }
    let mut queues = Vec::new();
    for device in found {
        let device = devices.join(device);
        for name in below(&device, "wq").unwrap_or_default() {
            let queue = describe(&device, &name, has);
            queues.push((name, queue));
        }
    }
    if queues.is_empty() { Err(format!("no device in {} has a work queue", devices.display())) } else { Ok(queues) }
}

fn describe(device: &Path, name: &str, has: Instructions) -> Result<Found, String> {
    let read = |path: &Path| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let attribute = |attribute: &str| read(&device.join(name).join(attribute));
    let state = attribute("state");
    if state != "enabled" {
        return Err(format!("its state is {state:?}, not \"enabled\""));
    }
    let kind = attribute("type");
    if kind != "user" {
        return Err(format!("its type is {kind:?}, not \"user\""));
    }
    if read(&device.join("pasid_enabled")) != "1" {
        return Err("its device does not share virtual memory: pasid_enabled is not 1".to_owned());
    }
    let mode = match attribute("mode").as_str() {
        "shared" if has.enqcmd => Mode::Shared,
        "dedicated" if has.movdir64b => Mode::Dedicated,
        "shared" => return Err("it is shared, and this processor has no ENQCMD".to_owned()),
        "dedicated" => return Err("it is dedicated, and this processor has no MOVDIR64B".to_owned()),
        mode => return Err(format!("its mode is {mode:?}")),
    };
    let number = |name: &str| {
        let text = attribute(name);
        let number = text.parse::<u32>().ok().filter(|number| *number > 0);
        number.map(|number| number as usize).ok_or_else(|| format!("its {name} is {text:?}"))
    };
    Ok(Found {
        name: name.to_owned(),
        mode,
        entries: number("size")?,
        transfer_bytes_max: number("max_transfer_size")?,
        // `prs_disable` overrides the other attribute. Devices that do not know it have no such file.
        blocks_on_fault: attribute("block_on_fault") == "1" && attribute("prs_disable") != "1",
    })
}

/// A queue that is open.
#[derive(Debug)]
pub(super) struct WorkQueue {
    mode: Mode,
    /// `None`: closed.
    portal: RwLock<Option<Portal>>,
}

impl WorkQueue {
    /// # Errors
    /// What the system refuses, in words.
    pub(super) fn open(devices: &Path, queue: &Found) -> Result<Self, String> {
        let path = devices.join(&queue.name);
        let refused = |doing: &str, error: &io::Error| refusal(doing, &path, error);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| refused("open", &error))?;
        let kind = file.metadata().map_err(|error| refused("look at", &error))?.file_type();
        if !kind.is_char_device() {
            return Err(format!("{} is not a device", path.display()));
        }
        let portal = Portal::map(&file).map_err(|error| refused("map the portal of", &error))?;
        Ok(Self { mode: queue.mode, portal: RwLock::new(Some(portal)) })
    }
}

#[cfg(test)]
impl WorkQueue {
    /// A dedicated queue whose portal is memory of this process, for an emulated device; and where that begins.
    pub(super) fn of_memory() -> (Self, *const u8) {
        let (flags, allowed) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PORTAL_BYTES, allowed, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        let portal = Portal(NonNull::new(base.cast::<u8>()).unwrap());
        (Self { mode: Mode::Dedicated, portal: RwLock::new(Some(portal)) }, base.cast())
    }
}

/// A message for an administrator.
pub(super) fn refusal(doing: &str, path: &Path, error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EACCES) => "; give this user access to the device file",
        Some(libc::EPERM) => {
            "; because of the advisory INTEL-SA-01084, Linux wants CAP_SYS_RAWIO of those who use these devices directly"
        }
        Some(libc::EBUSY) => "; a dedicated queue has one user at a time",
        _ => "",
    };
    format!("cannot {doing} {}: {error}{advice}", path.display())
}

// SAFETY: no thread is inside of `submit` while the portal is unmapped, because of the lock, and later ones find none. The mapping is the only handle of this
// process on the queue's open file: `open` closes the descriptor, and the driver marks the mapping as not inherited by children. So `munmap` is the last
// release of the file. At this release the driver waits until the device has ended all work of this process (Linux, `idxd_file_dev_release`: it drains the
// address space's work on a shared queue, and disables a dedicated one), and then detaches the address space from the device; `munmap` returns after that. The
// driver waits for the device's answer without bound, so `close` may never return if a device hangs and is not halted: then nothing that is borrowed is
// released. For a halted device the driver skips the wait (`idxd_cmd_exec`). Then safety rests on two assumptions: a halted device has ended or abandoned its
// work, and the IOMMU refuses its accesses once the address space is detached. One case remains: a child that is forked in the microseconds of `open` has the
// file until it executes its program, which must be over before the portal is unmapped.
unsafe impl Queue for WorkQueue {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submitted {
        let portal = self.portal.read().unwrap_or_else(PoisonError::into_inner);
        let Some(portal) = &*portal else { return Submitted::Closed };
        let at = portal.0.as_ptr();
        // SAFETY: a queue of a mode is found only on a processor that has its instruction. The portal is mapped while the lock is held, and begins at a page.
        // The system gives an address space number to a process that opens the device (where it has none, `find` says so). The caller is responsible for what
        // the device does.
        let is_taken = unsafe {
            match self.mode {
                Mode::Shared => instructions::enqcmd(at, descriptor),
                Mode::Dedicated => {
                    instructions::movdir64b(at, descriptor);
                    true
                }
            }
        };
        if is_taken { Submitted::Taken } else { Submitted::Full }
    }

    fn close(&self) {
        let mut portal = self.portal.write().unwrap_or_else(PoisonError::into_inner);
        *portal = None;
    }
}

/// A mapped portal: a page of the device, to which descriptors are written.
#[derive(Debug)]
struct Portal(NonNull<u8>);

/// Bytes of a portal.
const PORTAL_BYTES: usize = 4096;

// SAFETY: the page is this value's, and no code reads or writes it but for instructions that the device takes from any thread.
unsafe impl Send for Portal {}
// SAFETY: as for `Send`.
unsafe impl Sync for Portal {}

impl Portal {
    fn map(file: &File) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), PORTAL_BYTES, libc::PROT_WRITE, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(NonNull::new(base.cast::<u8>()).expect("mmap never returns null without MAP_FIXED")))
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no thread uses it any more.
        let done = unsafe { libc::munmap(self.0.as_ptr().cast(), PORTAL_BYTES) };
        if done != 0 {
            // It is then unknown whether the device still writes into memory of this process.
            std::process::abort();
        }
    }
}
