import { Link } from "@tanstack/react-router";
import type { PlanDocument, TaskDocument } from "../../api/contract";
import { Scroll } from "../../design/Scroll";
import { Status } from "../../design/Status";
import { plainText } from "../../format";

export function PlanTable({ plan }: { plan: PlanDocument }) {
  return (
    <Scroll label="Tasks of the plan">
      <table className="table">
        <caption className="sr-only">Tasks of the plan</caption>
        <thead>
          <tr>
            <th scope="col">Task</th>
            <th scope="col">Status</th>
            <th scope="col">What it is</th>
            <th scope="col">After</th>
            <th scope="col">Missions</th>
            <th scope="col">Reviews</th>
          </tr>
        </thead>
        <tbody>
          {plan.tasks.map((task) => (
            <Row key={task.id} task={task} />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Row({ task }: { task: TaskDocument }) {
  const refused = task.delegations.flatMap((each) => (each.refused ? [each.refused] : []));
  const why = [...refused, ...task.returned, ...(task.reason ? [task.reason] : [])];
  return (
    <tr>
      <th scope="row" className="mono">
        {task.id}
      </th>
      <td>
        <Status status={task.status} />
      </td>
      <td className="wrap plan-text">
        {plainText(task.text)}
        {task.delegated_by && <p className="soft small">Handed on by {task.delegated_by}</p>}
        {why.map(({ code, message }, index) => (
          <p key={`${index} ${code}`} className="soft small">
            {plainText(message)}
          </p>
        ))}
      </td>
      <td className="mono">{task.after.join(", ")}</td>
      <td>
        <MissionLinks missions={task.missions} />
      </td>
      <td>
        {task.reviews.map((review) => (
          <div key={review.mission} className="small">
            <Link to="/missions/$id" params={{ id: review.mission }}>
              {review.role}
            </Link>{" "}
            {review.vote ?? review.status}
            {review.points.map((point) => (
              <p key={point} className="soft wrap">
                {plainText(point)}
              </p>
            ))}
          </div>
        ))}
      </td>
    </tr>
  );
}

function MissionLinks({ missions }: { missions: readonly string[] }) {
  return (
    <ul>
      {missions.map((mission, index) => (
        <li key={mission}>
          <Link to="/missions/$id" params={{ id: mission }} className="mono" aria-label={`Mission ${mission}, round ${index + 1}`}>
            {mission.slice(0, 12)}…
          </Link>
        </li>
      ))}
    </ul>
  );
}
