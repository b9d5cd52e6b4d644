//! Files that a query spills to. They count the bytes written and read in the statistics of the
//! query's group (`io`).

use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures_util::{Stream, StreamExt};
use memgroup::stats::io::{RBYTES, WBYTES, WIOS};
use memgroup::{Group, Statistics};

/// The counters of one query's files.
#[derive(Clone)]
struct Counters {
    group: Group,
    io: Statistics,
}

/// Makes the files of one query.
pub(crate) struct SpillFiles {
    disk: Arc<DiskManager>,
    counters: Counters,
}

impl SpillFiles {
    pub(crate) fn new(disk: DiskManager, group: &Group, io: Statistics) -> SpillFiles {
        SpillFiles { disk: Arc::new(disk), counters: Counters { group: group.clone(), io } }
    }
}

impl TempFileFactory for SpillFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let file = self.disk.create_tmp_file(description)?;
        Ok(Arc::new(CountedFile { file, counters: self.counters.clone() }))
    }
}

struct CountedFile {
    file: Arc<dyn SpillFile>,
    counters: Counters,
}

impl SpillFile for CountedFile {
    fn path(&self) -> Option<&Path> {
        self.file.path()
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let Counters { group, io } = self.counters.clone();
        let parts = self.file.read_stream()?;
        Ok(Box::pin(parts.inspect(move |part| {
            if let Ok(part) = part {
                io.add(&group, RBYTES, part.len() as i64);
            }
        })))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(CountedWriter { writer: self.file.open_writer()?, counters: self.counters.clone() }))
    }
}

struct CountedWriter {
    writer: Box<dyn SpillWriter>,
    counters: Counters,
}

impl Write for CountedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes)?;
        let Counters { group, io } = &self.counters;
        io.add(group, WBYTES, written as i64);
        io.add(group, WIOS, 1);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SpillWriter for CountedWriter {
    fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }
}
