//! Loaded programs, used by one test after another: the verifier takes longer than most tests.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya::util::nr_cpus;
use aya_obj::generated::bpf_cmd;
use std::os::fd::{AsFd as _, AsRawFd as _};
use topo_lb_kernel::datapath::host::syscall::bpf;

use super::Hook;

/// What programs were loaded for: entries per map, and hooks.
pub(super) type Purpose = (u32, &'static [Hook]);

/// Loaded programs that no test uses.
static IDLE: Mutex<Vec<(Purpose, Ebpf)>> = Mutex::new(Vec::new());

/// Takes programs that are loaded for this purpose, with their maps as when they were made.
pub(super) fn take(purpose: Purpose) -> Result<Option<Ebpf>> {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(place) = idle.iter().position(|(of, _)| *of == purpose) else { return Ok(None) };
    let (_, ebpf) = idle.swap_remove(place);
    for (name, map) in ebpf.maps() {
        clear(map).with_context(|| format!("cannot clear the map {name}"))?;
    }
    Ok(Some(ebpf))
}

/// Keeps programs for the next test.
pub(super) fn give_back(purpose: Purpose, ebpf: Ebpf) {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).push((purpose, ebpf));
}

/// Makes a map as it was when it was made: without entries, or with zeros alone.
fn clear(map: &Map) -> Result<()> {
    match map {
        Map::HashMap(data) | Map::LruHashMap(data) | Map::LpmTrie(data) => remove_all(data),
        Map::PerCpuArray(data) => {
            let cpus = nr_cpus().map_err(|(_, error)| error)?;
            let size = data.info()?.value_size().next_multiple_of(8) as usize * cpus;
            (0..data.info()?.max_entries()).try_for_each(|key| zero(data, &[key], size))
        }
        // The constants cannot be written.
        Map::Array(data) if data.info()?.name() == b".rodata" => Ok(()),
        Map::Array(data) => {
            let keys: Vec<u32> = (0..data.info()?.max_entries()).collect();
            zero(data, &keys, data.info()?.value_size() as usize)
        }
        Map::Queue(data) => empty(data),
        // Socket storage: the sockets of a test are gone.
        Map::SkStorage(_) => Ok(()),
        // No test of packets traces, and packets are no connects that fail.
        Map::ArrayOfMaps(_) | Map::RingBuf(_) => Ok(()),
        _ => bail!("no test has cleared a map of this type yet"),
    }
}

/// Writes zeros of `size` bytes to entries of an array.
fn zero(map: &MapData, keys: &[u32], size: usize) -> Result<()> {
    let values = vec![0_u8; keys.len() * size];
    if let [key] = keys {
        bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, |attribute| {
            attribute.__bindgen_anon_2.map_fd = map.fd().as_fd().as_raw_fd() as u32;
            attribute.__bindgen_anon_2.key = std::ptr::from_ref(key) as u64;
            attribute.__bindgen_anon_2.__bindgen_anon_1.value = values.as_ptr() as u64;
        })?;
        return Ok(());
    }
    bpf(bpf_cmd::BPF_MAP_UPDATE_BATCH, |attribute| {
        attribute.batch.map_fd = map.fd().as_fd().as_raw_fd() as u32;
        attribute.batch.keys = keys.as_ptr() as u64;
        attribute.batch.values = values.as_ptr() as u64;
        attribute.batch.count = keys.len() as u32;
    })?;
    Ok(())
}

/// Removes all elements of a queue.
fn empty(map: &MapData) -> Result<()> {
    let mut value = vec![0_u8; map.info()?.value_size() as usize];
    let descriptor = map.fd().as_fd().as_raw_fd() as u32;
    while bpf(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_ELEM, |attribute| {
        attribute.__bindgen_anon_2.map_fd = descriptor;
        attribute.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    })
    .is_ok()
    {}
    Ok(())
}

/// Removes all entries.
fn remove_all(map: &MapData) -> Result<()> {
    let mut key = vec![0_u8; map.info()?.key_size() as usize];
    let descriptor = map.fd().as_fd().as_raw_fd() as u32;
    // Without a key, the kernel tells the first one, and fails if there is none.
    while bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, |attribute| {
        attribute.__bindgen_anon_2.map_fd = descriptor;
        attribute.__bindgen_anon_2.__bindgen_anon_1.next_key = key.as_mut_ptr() as u64;
    })
    .is_ok()
    {
        bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, |attribute| {
            attribute.__bindgen_anon_2.map_fd = descriptor;
            attribute.__bindgen_anon_2.key = key.as_ptr() as u64;
        })?;
    }
    Ok(())
}
