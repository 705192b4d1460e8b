#![no_std]
#![no_main]
//! The programs in the kernel.
