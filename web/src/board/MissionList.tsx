import { VirtualList } from "../design/VirtualList";
import { useNarrow } from "../useNarrow";
import { MissionRow } from "./MissionRow";
import type { BoardRow } from "./rows";

interface Props {
  rows: readonly BoardRow[];
  onToggle: (mission: string) => void;
  onEnd: () => void;
}

// A row has a fixed height in each layout, so that nothing jumps while rows come and go.
const HEIGHT = 54;
const NARROW_HEIGHT = 96;

const missionOf = (row: BoardRow) => row.mission.mission;

export function MissionList({ rows, onToggle, onEnd }: Props) {
  return (
    <VirtualList
      label="Missions"
      className="board-list"
      items={rows}
      keyOf={missionOf}
      height={useNarrow() ? NARROW_HEIGHT : HEIGHT}
      onEnd={onEnd}
      onKey={(key, row) => key === "x" && row.tasks > 0 && onToggle(row.mission.mission)}
    >
      {(row) => <MissionRow row={row} onToggle={onToggle} />}
    </VirtualList>
  );
}
