package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/format/text"
)

const (
	littleSpace = 1 << 30  // of a directory for logs or temporary files: a warning
	noSpace     = 16 << 20 // of it, or of shared memory: a failure
	trySize     = 64 << 10 // written to see whether that works
	littleShm   = 1 << 30  // of shared memory: a warning; containers get 64 MiB unless asked
)

// checkShm looks at /dev/shm, through which data loaders hand tensors on, and NCCL
// data between the GPUs of a host.
func (d *doctor) checkShm(context.Context) []Line {
	const dir = "/dev/shm"
	if _, err := fs.Stat(d.System.Root, "dev/shm"); errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Stat(d.System.Root, "proc/self"); err != nil {
			return nil // not Linux
		}
		return []Line{failure(dir+" is missing: data loaders and NCCL need it", "mount -t tmpfs -o size=50% tmpfs "+dir)}
	}
	if err := d.System.TryWrite(dir, 1); err != nil {
		return []Line{failure(fmt.Sprintf("%s cannot be written to: %v", dir, err),
			"data loaders and NCCL need it: remove what fills it (ls -l "+dir+"), or mount it writable")}
	}
	disk, err := d.System.Disk(dir)
	const fix = "docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm; " +
		"else mount -o remount,size=50% /dev/shm"
	switch {
	case err != nil:
		return []Line{warning(err.Error(), "")}
	case disk.Free < noSpace:
		return []Line{failure(fmt.Sprintf("%s of %s are free: data loaders die of SIGBUS", disk, dir),
			"remove what earlier jobs have left there, or: "+fix)}
	case disk.Free < littleShm:
		return []Line{warning(fmt.Sprintf("%s of %s are free: data loaders with several workers die of SIGBUS", disk, dir),
			fix)}
	}
	return []Line{ok("%s are free", disk)}
}

// String says how much is free: "1.0 GiB of 64 GiB".
func (d Disk) String() string { return text.Size(d.Free) + " of " + text.Size(d.Size) }

func (d *doctor) tmpDir() string {
	dir, _ := d.System.Lookup("TMPDIR")
	return cmp.Or(dir, "/tmp")
}

// checkTmp looks at where temporary files go.
func (d *doctor) checkTmp(context.Context) []Line {
	if d.LogDir == "" || d.LogDir == d.tmpDir() {
		return nil // checkLogDir does
	}
	return []Line{d.checkDir(d.tmpDir(), "set TMPDIR to a directory of a local disk")}
}

// checkLogDir looks at where log files go.
func (d *doctor) checkLogDir(context.Context) []Line {
	switch d.LogDir {
	case os.DevNull:
		return []Line{ok("none (--log-dir=/dev/null)")}
	case "":
		return []Line{d.checkDir(d.tmpDir(), "set TMPDIR, or give --log-dir")}
	}
	return []Line{d.checkDir(d.LogDir, "give another --log-dir")}
}

// checkDir sees whether a directory that exists, or can be made, can be written to
// and has space.
func (d *doctor) checkDir(dir, instead string) Line {
	at, shown := tempdir.Existing(dir), dir
	if at != dir {
		shown = dir + " (to be made in " + at + ")"
	}
	disk, statErr := d.System.Disk(at)
	err := d.System.TryWrite(at, trySize)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		left := ""
		if statErr == nil {
			left = fmt.Sprintf(" (%s are free)", disk)
		}
		return failure(fmt.Sprintf("%s: the disk is full%s: %v", shown, left, cause(err)),
			"make space there (df -h, df -i; quota), or "+instead)
	case errors.Is(err, syscall.EROFS):
		return failure(shown+": the file system is read-only", instead)
	case errors.Is(err, fs.ErrPermission):
		return failure(fmt.Sprintf("%s: this user may not write there: %v", shown, cause(err)),
			"chown or chmod it, or "+instead)
	case errors.Is(err, syscall.ENOTDIR):
		return failure(shown+" is not a directory", instead)
	case err != nil:
		return failure(fmt.Sprintf("%s cannot be written to: %v", shown, err), instead)
	case statErr != nil:
		return warning(statErr.Error(), "")
	case disk.Free < noSpace:
		return failure(fmt.Sprintf("%s: the disk is full (%s are free)", shown, disk),
			"make space there (df -h), or "+instead)
	case disk.Free < littleSpace:
		return warning(fmt.Sprintf("%s: %s are free", shown, disk), "make space there (df -h), or "+instead)
	}
	return ok("%s: %s are free", shown, disk)
}

// cause is what the kernel has said.
func cause(err error) error {
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		return no
	}
	return err
}
