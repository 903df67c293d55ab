import { Link } from "@tanstack/react-router";
import { Background, Controls, Handle, Position, ReactFlow, type Edge, type Node, type NodeProps } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useMemo } from "react";
import type { PlanDocument, TaskDocument } from "../../api/contract";
import { Status } from "../../design/Status";
import { plainText } from "../../format";
import { useTheme } from "../../shell/theme";
import { layOut, NODE_HEIGHT, NODE_WIDTH } from "./layout";

type TaskNode = Node<{ task: TaskDocument }, "task">;

const TYPES = { task: TaskBox };

/** The plan as a graph; a table shows the same to people who cannot see it. */
export default function PlanGraph({ plan }: { plan: PlanDocument }) {
  const theme = useTheme();
  const { nodes, edges } = useMemo(() => drawPlan(plan.tasks), [plan.tasks]);
  return (
    <figure className="plan-graph" aria-label="Graph of the plan">
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={TYPES}
        colorMode={theme}
        fitView
        fitViewOptions={{ maxZoom: 1, padding: 0.1 }}
        minZoom={0.15}
        nodesDraggable={false}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        preventScrolling={false}
        zoomOnScroll={false}
        proOptions={{ hideAttribution: true }}
      >
        <Background />
        <Controls showInteractive={false} />
      </ReactFlow>
    </figure>
  );
}

function TaskBox({ data: { task } }: NodeProps<TaskNode>) {
  const mission = task.missions.at(-1);
  return (
    <div className="plan-node">
      <Handle type="target" position={Position.Left} isConnectable={false} />
      <div className="row spread">
        {mission ? (
          <Link to="/missions/$id" params={{ id: mission }} className="mono cut">
            {task.id}
          </Link>
        ) : (
          <span className="mono cut">{task.id}</span>
        )}
        <Status status={task.status} />
      </div>
      <p className="small plan-node-text">{plainText(task.text)}</p>
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  );
}

function drawPlan(tasks: readonly TaskDocument[]): { nodes: TaskNode[]; edges: Edge[] } {
  const places = layOut(tasks);
  const nodes = tasks.map((task): TaskNode => ({
    id: task.id,
    type: "task",
    position: places.get(task.id) ?? { x: 0, y: 0 },
    width: NODE_WIDTH,
    height: NODE_HEIGHT,
    data: { task },
  }));
  const edges = tasks.flatMap((task) =>
    task.after.map((before) => ({ id: `${before} ${task.id}`, source: before, target: task.id, animated: task.status === "running" })),
  );
  return { nodes, edges };
}
