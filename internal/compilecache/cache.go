// Package compilecache keeps what TorchInductor and Triton have compiled on a host, outside
// of jobs, and carries it to other hosts and later jobs over a directory that they share.
//
// On the host the caches are directories as PyTorch makes them. In the shared directory each of
// their files is an entry, one file that names its path, size and SHA-256, is written beside and
// renamed, and is never changed. So hosts that write at once do not disturb each other, and what
// a host that dies leaves behind is no entry.
package compilecache

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
)

const (
	maxFile   = 1 << 30   // bytes of a file that is carried
	maxTotal  = 10 << 30  // bytes of all entries: the oldest are removed
	maxFiles  = 1_000_000 // entries
	maxPath   = 4 << 10   // bytes of a path, quoted
	maxHeader = 5 << 10   // bytes of an entry's first line
	stale     = time.Hour // age of a file that nobody writes any more, and that is no entry

	magic  = "muster-compile-cache 1"
	suffix = ".entry"
)

// caches are the variables that tell PyTorch where to keep what, and the directories.
var caches = []struct{ env, dir string }{
	{"TORCHINDUCTOR_CACHE_DIR", "inductor"},
	{"TRITON_CACHE_DIR", "triton"},
	{"CUDA_CACHE_PATH", cuda},
}

// cuda is kept on the host, and not carried: its index is one file that every process changes.
const cuda = "cuda"

// A Cache carries files between a host and a shared directory. Its methods but Env are for one
// goroutine at a time.
type Cache struct {
	host, shared string
	env          map[string]string
	own          map[string]bool // directories that the user has put elsewhere
	log          *slog.Logger
	limit        int64
	saved        map[string]time.Time // of the host's files that need no look at the shared directory: when they were written
}

// New makes the directories: below dir one for this user and kind of machine, and below local, or
// this user's cache directory where that is "", the host's. What lookup knows stays where it is.
func New(dir, local string, lookup func(string) (string, bool), log *slog.Logger) (*Cache, error) {
	if local == "" {
		users, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("no directory of this host for them: %w", err)
		}
		local = filepath.Join(users, "muster", "compile")
	}
	kind, err := machine()
	if err != nil {
		return nil, err
	}
	c := &Cache{host: filepath.Join(local, kind), shared: filepath.Join(dir, fmt.Sprintf("user%d-%s", os.Geteuid(), kind)),
		env: map[string]string{}, own: map[string]bool{}, log: log, limit: maxTotal, saved: map[string]time.Time{}}
	for _, path := range []string{c.host, c.shared} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	shared, host, err := c.open()
	if err != nil {
		return nil, err
	}
	defer shared.Close()
	defer host.Close()
	for _, cache := range caches {
		if _, set := lookup(cache.env); set {
			log.Info("compile cache is left where its variable says, and not carried", "variable", cache.env)
			c.own[cache.dir] = true
			continue
		}
		c.env[cache.env] = filepath.Join(c.host, cache.dir)
	}
	return c, nil
}

// machine names what compiled code fits: PyTorch keeps kernels for the CPU that it has found, and
// the libraries that they are linked with.
func machine() (string, error) {
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", fmt.Errorf("they are carried between hosts with the same CPU: %w", err)
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	first, _, _ := bytes.Cut(cpus, []byte("\n\n"))
	h := sha256.New()
	for line := range bytes.Lines(first) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(bytes.TrimSpace(name)) {
		case "model name", "flags", "Features", "CPU implementer", "CPU part":
			h.Write(value)
		}
	}
	h.Write(release)
	return fmt.Sprintf("%s-%s-%x", runtime.GOOS, runtime.GOARCH, h.Sum(nil)[:4]), nil
}

// Env is what workers get.
func (c *Cache) Env() map[string]string { return c.env }

// Seed copies the entries to the host that it lacks, the newest first, and returns how many.
func (c *Cache) Seed(ctx context.Context) (seeded int, err error) {
	shared, host, err := c.open()
	if err != nil {
		return 0, err
	}
	defer shared.Close()
	defer host.Close()
	have := map[string]bool{}
	problem := c.walk(ctx, host, time.Time{}, func(path string, _ fs.FileInfo) { have[entryName(path)] = true })
	entries, err := c.entries(ctx, shared)
	if err != nil {
		return 0, err
	}
	for _, e := range slices.Backward(entries) {
		if have[e.Name()] {
			continue
		}
		if ctx.Err() != nil {
			return seeded, context.Cause(ctx)
		}
		switch err := c.seed(shared, host, e.Name()); {
		case err == nil:
			seeded++
		case err != errElsewhere:
			problem = cmp.Or(problem, fmt.Errorf("%s: %w", e.Name(), err))
		}
	}
	return seeded, problem
}

// Save makes entries of the host's files that were not written after a time, and returns how many.
func (c *Cache) Save(ctx context.Context, until time.Time) (saved int, err error) {
	shared, host, err := c.open()
	if err != nil {
		return 0, err
	}
	defer shared.Close()
	defer host.Close()
	files := map[string]fs.FileInfo{}
	problem := c.walk(ctx, host, until, func(path string, info fs.FileInfo) {
		if !c.saved[path].Equal(info.ModTime()) && info.Size() <= maxFile {
			files[path] = info
		}
	})
	if len(files) == 0 {
		return 0, problem
	}
	entries, err := c.entries(ctx, shared)
	if err != nil {
		return 0, err
	}
	there, total := map[string]bool{}, int64(0)
	for _, e := range entries {
		there[e.Name()], total = true, total+e.Size()
	}
	for path, info := range files {
		if there[entryName(path)] {
			c.saved[path] = info.ModTime()
			delete(files, path)
		}
	}
	newest := slices.SortedFunc(maps.Keys(files), func(a, b string) int { return files[b].ModTime().Compare(files[a].ModTime()) })
	for _, path := range newest {
		if ctx.Err() != nil {
			return saved, context.Cause(ctx)
		}
		info := files[path]
		for ; total+info.Size() > c.limit && len(entries) > 0 && entries[0].ModTime().Before(info.ModTime()); entries = entries[1:] {
			total -= entries[0].Size()
			if err := shared.Remove(entries[0].Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return saved, err
			}
		}
		if total+info.Size() > c.limit {
			break // what is older has no place, or it would go and come
		}
		switch err := c.save(shared, host, path); {
		case errors.Is(err, errPart), errors.Is(err, fs.ErrNotExist): // PyTorch has removed it
			c.saved[path] = info.ModTime()
		case err != nil:
			problem = cmp.Or(problem, fmt.Errorf("%s: %w", path, err))
		default:
			saved, total = saved+1, total+info.Size()
			c.saved[path] = info.ModTime()
		}
	}
	return saved, problem
}

func (c *Cache) open() (shared, host *os.Root, err error) {
	if shared, err = open(c.shared); err != nil {
		return nil, nil, err
	}
	if host, err = open(c.host); err != nil {
		shared.Close()
	}
	return shared, host, err
}

// open opens a directory that this user alone may write to. It is no link, which another user may
// have put into a directory that they share.
func open(path string) (*os.Root, error) {
	entry, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && !(entry.IsDir() && os.SameFile(entry, info) && safeopen.Trusted(info, false)) {
		err = fmt.Errorf("%s: another user may write there, and workers would run it; use a directory of your own, with chmod go-w", path)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// entries are those of the shared directory, that of the oldest file first. It removes what was not finished.
func (c *Cache) entries(ctx context.Context, shared *os.Root) ([]fs.FileInfo, error) {
	dir, err := shared.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxFiles)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var entries []fs.FileInfo
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		info, err := shared.Lstat(name)
		switch {
		case err != nil || !info.Mode().IsRegular(): // another host has removed it, or it is none
		case strings.HasSuffix(name, suffix):
			entries = append(entries, info)
		case temporary.MatchString(name) && time.Since(info.ModTime()) > stale:
			_ = shared.Remove(name)
		}
	}
	slices.SortFunc(entries, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	return entries, nil
}

// walk calls found for the host's files that are carried. A zero time is no limit. It goes on where
// one cannot be looked at, and returns the first such error.
func (c *Cache) walk(ctx context.Context, host *os.Root, until time.Time, found func(path string, info fs.FileInfo)) (problem error) {
	for _, cache := range caches {
		err := fs.WalkDir(host.FS(), cache.dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				if !errors.Is(err, fs.ErrNotExist) { // none yet, or PyTorch has removed it
					problem = cmp.Or(problem, err)
				}
				return nil
			case temporary.MatchString(d.Name()):
				if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > stale {
					_ = host.Remove(path) // of an agent that was killed
				}
				return nil
			case d.IsDir() && (unfinished(d.Name()) || d.Name() == "locks" || path == cuda || c.own[path]):
				return fs.SkipDir
			case !d.Type().IsRegular() || unfinished(d.Name()) || !c.carries(path):
				return nil
			}
			if info, err := d.Info(); err == nil && (until.IsZero() || !info.ModTime().After(until)) {
				found(path, info)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return problem
}

// carries says whether a path is one of the caches that are carried.
func (c *Cache) carries(path string) bool {
	dir, file, _ := strings.Cut(path, "/")
	return (dir == "inductor" || dir == "triton") && !c.own[dir] && file != "" && fs.ValidPath(path) && len(strconv.Quote(path)) < maxPath
}

// unfinished says whether a file or directory is still being written, or guards others: as we,
// PyTorch and Triton call them.
func unfinished(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "tmp") || strings.Contains(name, ".tmp") || strings.HasSuffix(name, ".lock")
}

// entryName is the file of a path's entry.
func entryName(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:20]) + suffix
}

// save makes an entry.
func (c *Cache) save(shared, host *os.Root, path string) error {
	from, info, err := safeopen.OpenIn(host, path)
	if err != nil {
		return err
	}
	defer from.Close()
	if !whole(from, info.Size()) {
		return errPart
	}
	return replace(shared, entryName(path), 0o600, info.ModTime(), func(to io.Writer) error {
		sum := sha256.New()
		out := io.MultiWriter(to, sum)
		if _, err := fmt.Fprintf(out, "%s %o %d %q\n", magic, info.Mode().Perm()&0o700, info.Size(), path); err != nil {
			return err
		}
		switch n, err := io.Copy(out, io.LimitReader(from, maxFile)); {
		case err != nil:
			return err
		case n != info.Size():
			return fmt.Errorf("%s changes while it is read", path)
		}
		_, err := fmt.Fprintf(to, "%x\n", sum.Sum(nil))
		return err
	})
}

// errPart: a linker that was killed leaves a part of a shared object.
var errPart = errors.New("a part of a shared object")

// whole says whether a file is no part of a shared object.
func whole(f *os.File, size int64) bool {
	var magic [4]byte
	if n, _ := f.ReadAt(magic[:], 0); string(magic[:n]) != elf.ELFMAG {
		return !strings.HasSuffix(f.Name(), ".so")
	}
	object, err := elf.NewFile(f)
	if err != nil || len(object.Sections) == 0 {
		return false
	}
	for _, s := range object.Sections {
		if s.Type != elf.SHT_NOBITS && s.Offset+s.FileSize > uint64(size) {
			return false
		}
	}
	return true
}

// errElsewhere: the user has put that cache elsewhere.
var errElsewhere = errors.New("its cache is elsewhere")

// seed makes a file of an entry.
func (c *Cache) seed(shared, host *os.Root, name string) error {
	f, info, err := safeopen.OpenIn(shared, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if !safeopen.Trusted(info, false) {
		return errors.New("another user may have written it")
	}
	sum := sha256.New()
	in := bufio.NewReaderSize(f, 64<<10)
	path, mode, size, err := readHeader(in, sum)
	switch {
	case err != nil:
		return err
	case entryName(path) == name && c.own[strings.Split(path, "/")[0]]:
		return errElsewhere
	case entryName(path) != name || !c.carries(path):
		return fmt.Errorf("is not the entry of %q", path)
	case info.Size() > size+maxHeader+sha256.Size*2+1 || size > maxFile:
		return errors.New("has another size than it says")
	}
	if err := host.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return replace(host, path, mode, info.ModTime(), func(to io.Writer) error {
		if _, err := io.CopyN(io.MultiWriter(to, sum), in, size); err != nil {
			return err
		}
		end := make([]byte, sha256.Size*2+1)
		if _, err := io.ReadFull(in, end); err != nil {
			return err
		}
		if string(end) != fmt.Sprintf("%x\n", sum.Sum(nil)) {
			return errors.New("its SHA-256 is another one: it is damaged")
		}
		return nil
	})
}

// readHeader reads an entry's first line.
func readHeader(in *bufio.Reader, sum hash.Hash) (path string, mode fs.FileMode, size int64, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil || len(line) > maxHeader {
		return "", 0, 0, errors.New("is no entry")
	}
	sum.Write(line)
	if _, err := fmt.Sscanf(string(line), magic+" %o %d %q\n", &mode, &size, &path); err != nil || size < 0 || mode&^0o700 != 0 {
		return "", 0, 0, errors.New("is no entry of this release")
	}
	return path, mode, size, nil
}

// temporary is what replace calls a file that is not whole.
var temporary = regexp.MustCompile(`^\.muster-\d+-[0-9a-f]+$`)

// replace writes a file beside its place, and puts it there when it is whole.
func replace(root *os.Root, path string, mode fs.FileMode, written time.Time, write func(io.Writer) error) error {
	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".muster-%d-%x", os.Getpid(), time.Now().UnixNano()))
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Chtimes(temp, written, written)
	}
	if err == nil {
		err = root.Rename(temp, path)
	}
	if err != nil {
		_ = root.Remove(temp)
	}
	return err
}
