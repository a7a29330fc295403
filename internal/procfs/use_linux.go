package procfs

// Uses returns what each of some processes uses along with its descendants, by
// pid. A descendant whose parent has ended is not found.
func Uses(pids []int) (map[int]Use, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	return uses(all, pids), nil
}
