package procfs

// Uses returns what each of some processes uses, with what belongs to it, by pid. It
// reads the state of every process of the machine.
func Uses(pids []int) (map[int]Use, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	return uses(all, pids), nil
}
