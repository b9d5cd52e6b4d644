//! Tree: answers the kernel's requests.
//!
//! ```text
//!   kernel ─ request ─▶ one thread ─▶ inode number ─▶ group by its id ─▶ engine ─▶ answer
//!                          ├─ memory.reclaim, rmdir ─▶ workers             (short locks only)
//!                          └─ poll ─▶ watch
//! ```
//!
//! The kernel caches nothing about the existence of a group, and looks up each directory again. It
//! may cache names and attributes of files, which last as long as their group and are changed only
//! by requests to this mount.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use memgroup::{Group, Hierarchy};
use parking_lot::Mutex;

use crate::error;
use crate::files::Files;
use crate::inode::{DIRECTORY, Inode, Inodes};
use crate::open::{Open, Values, Write};
use crate::owners::{Owner, Owners};
use crate::row::{self, Row};
use crate::table::Table;
use crate::watch::Watch;
use crate::workers::{RECLAIMS, REMOVALS, Reclaim, Removal, Workers};

/// How long the kernel may cache names and attributes of files.
const FILES_KEPT: Duration = Duration::from_secs(3600);

/// How long the kernel may cache a directory's attributes. It looks up every directory except the
/// root each time, and so gets new ones. For the root, the number of links may be this old.
const DIRECTORIES_KEPT: Duration = Duration::from_millis(100);

/// The longest name, in bytes.
const NAME_MAX: u32 = 255;

/// The block size that the kernel recommends to programs for reads and writes.
const BLOCK_BYTES: u32 = 4096;

/// The most bytes of one write request. A longer write is split into several, and the first of them
/// is already too long for a file.
const REQUEST_BYTES_MAX: u32 = 8192;

/// An entry of an open directory.
struct DirectoryEntry {
    number: INodeNo,
    kind: FileType,
    name: String,
}

/// The entries of one open directory, listed at each read of its beginning.
type Listing = Mutex<Vec<DirectoryEntry>>;

/// The most open files of the first user. Each stores the text that was read.
const FILES_MOST: usize = 16_384;

/// The most open directories of the first user, together with the entries of their lists.
const ENTRIES_MOST: usize = 1 << 20;

/// The file system of one mount.
pub(crate) struct Tree {
    hierarchy: Hierarchy,
    inodes: Inodes,
    files: Files,
    owners: Arc<Owners>,
    open: Table<Open>,
    listings: Table<Listing>,
    watch: Watch,
    reclaims: Workers<Reclaim>,
    removals: Workers<Removal>,
    row: Option<Row>,
}

impl Tree {
    pub(crate) fn new(hierarchy: &Hierarchy, mounter: Owner) -> io::Result<Tree> {
        Ok(Tree {
            hierarchy: hierarchy.clone(),
            inodes: Inodes::new(hierarchy),
            files: Files::of(hierarchy),
            owners: Arc::new(Owners::new(hierarchy, mounter)),
            open: Table::new(FILES_MOST),
            listings: Table::new(ENTRIES_MOST),
            watch: Watch::new(hierarchy)?,
            reclaims: Workers::new(RECLAIMS),
            removals: Workers::new(REMOVALS),
            row: None,
        })
    }

    /// Makes the tree poll for requests of this connection after an answer.
    pub(crate) fn looking(self, row: Row) -> Tree {
        Tree { row: Some(row), ..self }
    }

    /// Returns a guard that notes the answer when it is dropped. For requests that come in rows.
    fn in_row(&self) -> Option<row::Answer<'_>> {
        self.row.as_ref().map(row::Answer)
    }

    fn inode(&self, number: INodeNo) -> Inode {
        self.inodes.find(number)
    }

    /// Returns the group of a directory, if it was not removed.
    fn directory(&self, number: INodeNo) -> Option<Group> {
        let Inode { group, file } = self.inode(number);
        self.hierarchy.group(group).filter(|group| file == DIRECTORY && group.is_online())
    }

    /// Returns the attributes of an inode. A removed group still has them, for open descriptors.
    fn attributes(&self, inode: Inode, group: Option<&Group>) -> FileAttr {
        let file = self.files.get(inode.file);
        let rights = self.owners.get(inode, file.as_deref());
        let (kind, nlink) = match inode.file {
            DIRECTORY => (FileType::Directory, 2 + group.map_or(0, Group::child_count)),
            _ => (FileType::RegularFile, 1),
        };
        FileAttr {
            ino: inode.number(self.inodes.root),
            size: 0,
            blocks: 0,
            atime: rights.accessed,
            mtime: rights.modified,
            ctime: rights.modified,
            crtime: rights.modified,
            kind,
            perm: rights.mode,
            nlink: u32::try_from(nlink).unwrap_or(u32::MAX),
            uid: rights.owner.uid,
            gid: rights.owner.gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    fn enter(&self, group: &Group, reply: ReplyEntry) {
        let inode = Inode { group: group.id(), file: DIRECTORY };
        self.inodes.tell(inode.group);
        let attributes = self.attributes(inode, Some(group));
        reply.entry_with_ttls(&DIRECTORIES_KEPT, &Duration::ZERO, &attributes, Generation(0));
    }

    fn reply_attributes(&self, inode: Inode, reply: ReplyAttr) {
        let group = self.hierarchy.group(inode.group);
        let kept = if inode.file == DIRECTORY { DIRECTORIES_KEPT } else { FILES_KEPT };
        reply.attr(&kept, &self.attributes(inode, group.as_ref()));
    }

    fn list(&self, group: &Group) -> Vec<DirectoryEntry> {
        let (id, parent) = (group.id(), group.parent().map_or(group.id(), |parent| parent.id()));
        let entry = |group, file, kind, name| {
            let number = Inode { group, file }.number(self.inodes.root);
            DirectoryEntry { number, kind, name }
        };
        let directory = |group, name| entry(group, DIRECTORY, FileType::Directory, name);
        let mut entries = vec![directory(id, ".".to_owned()), directory(parent, "..".to_owned())];
        if !group.is_online() {
            return entries;
        }
        let files = self.files.list();
        entries
            .extend(files.map(|(number, file)| entry(id, number, FileType::RegularFile, file.name.clone())));
        let children = group.children().into_iter().map(|child| (child.id(), child.name()));
        // A file hides a group to which the program gave the same name.
        let children = children.filter(|(_, name)| self.files.find(name).is_none());
        entries.extend(children.map(|(id, name)| directory(id, name)));
        entries
    }
}

impl Filesystem for Tree {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Both are within the bounds of the protocol. Without the capability, the kernel sends a
        // separate truncation, which is answered as well.
        _ = config.set_max_write(REQUEST_BYTES_MAX);
        _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _in_row = self.in_row();
        let found = self.directory(parent).zip(name.to_str());
        let Some((group, name)) = found else { return reply.error(Errno::ENOENT) };
        if let Some((file, _)) = self.files.find(name) {
            let inode = Inode { group: group.id(), file };
            self.inodes.tell(inode.group);
            return reply.entry(&FILES_KEPT, &self.attributes(inode, None), Generation(0));
        }
        match group.child(name) {
            Some(child) => self.enter(&child, reply),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attributes(self.inode(number), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        // A truncation changes nothing, because files have no bytes.
        _: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let inode = self.inode(number);
        let file = self.files.get(inode.file);
        let before = self.owners.get(inode, file.as_deref());
        let mut rights = before;
        rights.mode = mode.map_or(rights.mode, |mode| (mode & 0o7777) as u16);
        rights.owner = Owner { uid: uid.unwrap_or(rights.owner.uid), gid: gid.unwrap_or(rights.owner.gid) };
        let time = |time, now: SystemTime| match time {
            Some(TimeOrNow::SpecificTime(time)) => time,
            Some(TimeOrNow::Now) => SystemTime::now(),
            None => now,
        };
        (rights.accessed, rights.modified) =
            (time(accessed, rights.accessed), time(modified, rights.modified));
        if rights != before && self.hierarchy.group(inode.group).is_some_and(|group| group.is_online()) {
            self.owners.set(inode, rights);
        }
        self.reply_attributes(inode, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let Some(parent) = self.directory(parent) else { return reply.error(Errno::ENODEV) };
        if name.len() > NAME_MAX as usize {
            return reply.error(Errno::ENAMETOOLONG);
        }
        let Some(name) = name.to_str() else { return reply.error(Errno::EINVAL) };
        if self.files.find(name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        match parent.create(name) {
            Ok(group) => {
                let creator = Owner { uid: request.uid(), gid: request.gid() };
                self.owners.created(group.id(), creator, (mode & 0o7777) as u16);
                self.enter(&group, reply);
            }
            Err(error) => reply.error(error::of_group(&error)),
        }
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let child = self.directory(parent).zip(name.to_str()).and_then(|(parent, name)| parent.child(name));
        let Some(group) = child else { return reply.error(Errno::ENOENT) };
        let (owners, watch) = (Arc::clone(&self.owners), self.watch.removing(&group, reply));
        self.removals.add(request.uid(), Removal { group, owners, watch });
    }

    fn open(&self, request: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _in_row = self.in_row();
        let inode = self.inode(number);
        let group = self.hierarchy.group(inode.group).filter(Group::is_online);
        let Some((group, file)) = group.zip(self.files.get(inode.file)) else {
            return reply.error(Errno::ENODEV);
        };
        match self.open.insert(request.uid(), Open::new(request.uid(), group.downgrade(), file)) {
            Some(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH),
            None => reply.error(Errno::ENFILE),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _in_row = self.in_row();
        let Some(open) = self.open.get(handle) else { return reply.error(Errno::EBADF) };
        open.read(offset, size, |read| match read {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _in_row = self.in_row();
        let Some(open) = self.open.get(handle) else { return reply.error(Errno::EBADF) };
        let bytes = data.len() as u32;
        match open.write(data) {
            Ok(Write::Done) => {
                if open.keeps_group(&mut Values::default()) {
                    self.watch.keep(handle, &open);
                }
                reply.written(bytes);
            }
            Ok(Write::Later(group, text)) => {
                self.reclaims.add(request.uid(), Reclaim { group, text, bytes, reply })
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _in_row = self.in_row();
        self.watch.forget(handle);
        drop(self.open.remove(handle));
        reply.ok();
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let Some(open) = self.open.get(handle) else { return reply.error(Errno::EBADF) };
        if flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY) && !self.watch.poll(handle, &open, notifier) {
            // The poller gets only POLLERR.
            return reply.error(Errno::ENOSPC);
        }
        let events = open.poll();
        if events.contains(PollEvents::POLLPRI) {
            self.watch.polled(handle);
        }
        reply.poll(events);
    }

    fn opendir(&self, request: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.listings.insert(request.uid(), Listing::default()) {
            Some(handle) => reply.opened(handle, FopenFlags::empty()),
            None => reply.error(Errno::ENFILE),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(listing) = self.listings.get(handle) else { return reply.error(Errno::EBADF) };
        let mut entries = listing.lock();
        if offset == 0 {
            let group = self.hierarchy.group(self.inode(number).group);
            *entries = group.map(|group| self.list(&group)).unwrap_or_default();
            self.listings.hold(handle, entries.len());
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, entry) in entries.iter().enumerate().skip(from) {
            if reply.add(entry.number, at as u64 + 1, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        drop(self.listings.remove(handle));
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, BLOCK_BYTES, NAME_MAX, BLOCK_BYTES);
    }

    // The kernel sends no `access`, because it checks the permissions, and no `flush`, because
    // files are opened with `FOPEN_NOFLUSH`.

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        // An empty file has neither holes nor data.
        reply.error(Errno::ENXIO);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EACCES);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
